"""A training script for the tests: it imports no library, so it starts in a few milliseconds.

`script.py LOG STEPS BATCH_SIZE SEED LINES END ...`: appends LINES to LOG, and then does END.
"""

import errno
import os
import signal
import sys
import time

log, steps, _, _, lines, end, *_ = sys.argv[1:]
with open(log, "a") as file:
    file.write(lines.encode().decode("unicode_escape"))
print("made", steps, "steps", flush=True)
match end:
    case "crash":
        print("the data are gone", file=sys.stderr)
        sys.exit(3)
    case "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoint.pt")
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "waits":
        time.sleep(60)
    case "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
