"""The coordinator's end of a competitor's process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

from competitors import Competitor

HERE = Path(__file__).parent
PATIENCE = 1.0  # seconds to wait for threads that spin


class Failure(Exception):
    pass


class Process:
    def __init__(self, competitor: Competitor, libraries: Path):
        self.competitor = competitor
        environment = os.environ | competitor.variables() | {"ROOTDK_BENCH_LIB": str(libraries)}
        self.child = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            env=environment,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, name: str, **arguments):
        """Sends one message and waits for the answer and for the process to fall asleep."""
        print(json.dumps([name, arguments]), file=self.child.stdin)
        line = self.child.stdout.readline()
        self.settle()
        if not line:
            raise Failure(f"{self.competitor.key}: the process ended with status {self.child.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(f"{self.competitor.key}: {answer['error']}")
        return answer["result"]

    def settle(self):
        """Thread pools spin for some milliseconds after their work; the next competitor must not share the cores with
        that."""
        end = monotonic() + PATIENCE
        while self.busy() and monotonic() < end:
            sleep(0.0005)

    def busy(self) -> bool:
        tasks = Path(f"/proc/{self.child.pid}/task")
        try:
            return any((task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "R" for task in tasks.iterdir())
        except OSError:  # a thread or the process ended meanwhile
            return False

    def ended(self) -> bool:
        return self.child.poll() is not None

    def close(self):
        self.child.stdin.close()
        self.child.wait()
