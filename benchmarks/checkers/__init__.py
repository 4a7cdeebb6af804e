"""The checkers that `benchmarks.checking` measures; each search is `python -m benchmarks.checkers.NAME MODEL N`.

A model is `two_phase` or `planted` (its failing twin) with N resource managers, or `checkpoint` with N checkpoints.
Those that run other projects' checkers import nothing but those and the standard library.
"""
