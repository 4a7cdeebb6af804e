"""Runs the three test suites one after the other and prints what each took.

Arguments are passed to pytest as they are; a failing suite does not stop the next one. The last line sums up
all suites as `N passed, N failed`; the exit code is 0 only if every suite ran at least one test and none failed.
"""

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".test-results"
SUITES = {"tests": ["-n", "2", "--dist", "loadfile"], "stateful_tests": ["-n", "2"], "models": ["-n", "2"]}
"""Each with options of its own: two processes are twice as fast. Files of `tests` stay whole for their fixtures."""
LIMIT_S = 8 * 60


def run(suite: str, arguments: list[str]) -> tuple[int, dict[str, int], float]:
    """The suite has run; its exit code, counts of tests (passed, failed, skipped), seconds."""
    report = RESULTS / f"{suite}.xml"
    report.unlink(missing_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", suite, "-q", f"--junit-xml={report}", "--durations=5"]
    command += [*SUITES[suite], *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    seconds = time.monotonic() - started
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if report.exists():
        for element in ElementTree.parse(report).iter("testsuite"):
            number = {name: int(element.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
            failed = number["failures"] + number["errors"]
            counts["failed"] += failed
            counts["skipped"] += number["skipped"]
            counts["passed"] += number["tests"] - failed - number["skipped"]
    return code, counts, seconds


def main(arguments: list[str]) -> int:
    RESULTS.mkdir(exist_ok=True)
    rows = []
    for suite in SUITES:
        print(f"== {suite}", flush=True)
        rows.append((suite, *run(suite, arguments)))
    total_s = sum(seconds for *_, seconds in rows)
    print()
    for suite, code, counts, seconds in rows:
        verdict = "ok" if code == 0 else f"FAILED (pytest exit code {code})"
        print(f"{suite:<16}{counts['passed']:>6} passed {counts['failed']:>4} failed {seconds:>8.1f} s  {verdict}")
    print(f"{'total':<16}{'':<24}{total_s:>9.1f} s  of {LIMIT_S} s" + ("" if total_s <= LIMIT_S else "  TOO SLOW"))
    totals = {name: sum(counts[name] for _, _, counts, _ in rows) for name in ("passed", "failed", "skipped")}
    summary = f"{totals['passed']} passed, {totals['failed']} failed"
    if totals["skipped"]:
        summary += f", {totals['skipped']} skipped"
    (RESULTS / "summary.txt").write_text(summary + "\n")
    print(summary, flush=True)
    return 0 if all(code == 0 for _, code, _, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
