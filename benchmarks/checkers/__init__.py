"""The checkers that `benchmarks.checking` measures; each search is `python -m benchmarks.checkers.NAME MODEL N`.

A model is `two_phase` or `planted` (its failing twin) with N resource managers, or `checkpoint` of size N.
Those that run other projects' checkers import nothing but those and the standard library.
"""
