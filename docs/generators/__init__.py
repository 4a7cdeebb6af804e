"""What `docs/generate.py` takes its pages from: tables, refusal codes, the files of a real job, marks in tests."""
