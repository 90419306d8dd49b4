"""Where and on what a result was made."""

import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parent.parent


def git(*arguments) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()


def commit() -> str:
    """With "+" where the library's sources are not those of the commit."""
    changed = git("status", "--porcelain", "--", "src", "include", "cmake", "CMakeLists.txt")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def describe() -> dict:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    field = lambda name: (re.search(rf"^{name}\s*: (.*)$", cpuinfo, re.M) or [None, "unknown"])[1]
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")
    return {
        "cpu": f"{field('model name')} (family {field('cpu family')}, model {field('model')})",
        "instruction_sets": [flag for flag in wanted if flag in field("flags").split()],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def running() -> int:
    """Threads on this machine that run or want to, the asking one among them."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])


class Load:
    """How much of the cores' time, while entered, went to processes that are not ours or to other guests of the same
    host."""

    def __init__(self):
        self.total = self.elsewhere = 0.0
        self.ours = [os.getpid()]

    def read(self) -> tuple[int, int]:
        """Clock ticks of all cores since boot: all, and those spent elsewhere."""
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        busy = user + nice + system + irq + softirq + steal
        fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self.ours]
        return busy + idle + iowait, busy - sum(int(stat[11]) + int(stat[12]) for stat in fields)

    def __enter__(self):
        self.before = self.read()

    def __exit__(self, *_):
        total, elsewhere = self.read()
        self.total += total - self.before[0]
        self.elsewhere += elsewhere - self.before[1]

    def share(self) -> float:
        return max(0.0, self.elsewhere) / self.total if self.total else 0.0
