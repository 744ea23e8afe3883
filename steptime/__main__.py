"""``python -m steptime``."""

from __future__ import annotations

import sys

from steptime.cli import main

if __name__ == "__main__":
    sys.exit(main())
