"""``python -m tacit``: the ``tacit`` command where only the interpreter is at hand."""

import sys

from tacit.cli import main

sys.exit(main())
