"""The commands of a tutorial, typed and run in a terminal, as the README's recording shows them: `make recording`.

    python -m scripts.type_page docs/start/first-run.md

The page's files are written into a folder of their own; each line of its `bash not-run: a test runs it` blocks, which
need these files alone, is run by bash, in order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.pages import blocks

#: Seconds for a letter, and to read what a command has printed.
LETTER, READ = 0.03, 3.0


def main() -> int:
    """Run the page that the command line names; the exit code of its first command that fails, else 0."""
    page = Path(sys.argv[1]).resolve()
    programs = str(Path(sys.executable).parent)
    with tempfile.TemporaryDirectory() as folder:
        for one in blocks(page):
            if one.words.startswith("file="):
                Path(folder, one.words.removeprefix("file=")).write_text(one.text, encoding="utf-8")
        own = {"PATH": f"{programs}:{os.environ['PATH']}", "COACH_HOME": f"{folder}/home"}
        typed = [
            one for one in blocks(page) if one.language == "bash" and one.words.startswith("not-run: a test runs it")
        ]
        for line in (line for one in typed for line in one.text.splitlines()):
            for letter in f"$ {line}\n":
                print(letter, end="", flush=True)
                time.sleep(LETTER)
            code = subprocess.run(["bash", "-c", line], cwd=folder, env=os.environ | own, check=False).returncode
            if code:
                return code
            time.sleep(READ)
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
