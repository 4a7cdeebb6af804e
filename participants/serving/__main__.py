"""``python -m participants.serving module:factory``: serves an application as a process of its own."""

import sys

from .serve import main

sys.exit(main())
