"""Scenarios put back into the running code, and who finds them: `python -m stateful_tests.planted`.

A fault is a scenario of docs/reference/scenarios.md, a change of the code that brings it back, and the weapon that
must find it. The modules have them by place; `faults` has all of them, and says of every other scenario why it is not
planted. docs/reference/planted-faults.md is written from here.
"""
