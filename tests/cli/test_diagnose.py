"""``steptime diagnose`` on traces: what it prints, writes and posts, and what it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import steptime
from steptime.cli import main
from steptime.cli.webhook import post
from steptime.diagnose.on_call import on_call
from steptime.report import prometheus


class _Receiver(ThreadingHTTPServer):
    """A real server that keeps what it is sent and answers with the codes it is told."""

    def __init__(self, answers: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.bodies: list[dict[str, object]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/s3cret"


class _Handler(BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


@contextmanager
def _receiver(*answers: int) -> Iterator[_Receiver]:
    with _Receiver(list(answers)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_the_verdict_comes_first(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(sample)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    # traces/gloo_ddp_2ranks/MADE.md: rank 1's loader sleeps.
    assert " is spent waiting for a late rank." in " ".join(out.splitlines()[:2])
    assert "Rank 1 on host vm is late: its time goes to data" in out
    assert "In the next ten minutes\n1. Look at the data loader of rank 1 on host vm" in out
    assert len(out.splitlines()) <= 45


def test_the_summary_is_posted(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics, whole = tmp_path / "steptime.prom", tmp_path / "report.json"
    with _receiver() as server:
        words = ["--webhook", server.url, "--metrics", str(metrics), "-o", str(whole), "-q"]
        assert main(["diagnose", str(sample), *words]) == 0
    assert capsys.readouterr() == ("", "")
    (body,) = server.bodies
    assert str(body["text"]).startswith("A step takes ")
    assert "Rank 1 on host vm is late" in str(body["text"])
    assert (body["status"], body["kind"], body["schema_version"]) == ("slow", "on call", 1)
    # The file is the report that analyze writes, and the metrics are of it.
    report = steptime.load(whole)
    assert report.findings == steptime.analyze(str(sample)).findings
    assert metrics.read_text() == prometheus.render(on_call(report))


@pytest.mark.parametrize(
    ("answers", "tries", "why"),
    [
        ((503, 200), 2, None),
        ((429, 204), 2, None),
        ((500, 500), 2, "it answers 500"),
        ((404,), 1, "it answers 404"),
        ((302,), 1, "it answers 302"),
    ],
)
def test_one_retry(answers: tuple[int, ...], tries: int, why: str | None) -> None:
    with _receiver(*answers) as server:
        failed = post(server.url, {"text": "slow"}, pause_s=0.0)
    assert server.bodies == [{"text": "slow"}] * tries
    assert (failed is None) == (why is None)
    assert why is None or (failed is not None and why in failed and "s3cret" not in failed)


def test_a_webhook_that_is_not_there_is_a_warning(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _receiver() as server:
        url = server.url
    assert main(["diagnose", str(sample), "-q", "--webhook", url]) == 0
    err = capsys.readouterr().err
    assert err.startswith("steptime: warning: webhook at 127.0.0.1: ")
    assert "s3cret" not in err


def test_metrics_are_valid(sample: Path) -> None:
    """Read by Prometheus' own parser; sums and labels are those of the report."""
    report = steptime.analyze(str(sample))
    evil = 'a "b" \\ c\nd'
    text = prometheus.render(on_call(report, job=evil))
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert {one.type for one in families.values()} == {"gauge"}
    shares = families["steptime_leaf_share_ratio"].samples
    assert sum(one.value for one in shares) == pytest.approx(1, abs=1e-6)
    by_leaf = {f"{one.labels['slice']}/{one.labels['leaf']}": one.value for one in shares}
    loader = sum(step.leaves_ns.get("host/data_loader", 0) for rank in report.ranks for step in rank.steps)
    assert by_leaf["host/data_loader"] == pytest.approx(loader / report.job.total_ns, rel=0.2)
    # A line feed is shown as text, quotes and backslashes come back as they were.
    assert {one.labels["job_name"] for one in shares} == {'a "b" \\ c\\nd'}
    (median,) = [one.value for one in families["steptime_step_time_seconds"].samples if one.labels["quantile"] == "0.5"]
    assert median == report.job.step_time_ns.median / 1e9
    # No MFU is known of ranks on the CPU: absent, not zero.
    assert "steptime_mfu_ratio" not in families
    status = {one.labels["status"]: one.value for one in families["steptime_status"].samples}
    assert status == {"slow": 1.0, "clear": 0.0, "cannot tell": 0.0}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "name a PATH"),
        (["{sample}", "--pid", "1"], "two different requests"),
        (["{sample}", "--ranks", "0"], "--ranks says what to capture"),
        (["{sample}", "--steps", "3"], "--steps says what to capture"),
        (["{sample}", "--webhook", "ftp://x/y"], "not an http or https URL"),
        (["{sample}", "--webhook", "http://x/a b"], "not an http or https URL"),
        (["{sample}", "--metrics", "/no/such/folder/x.prom"], "does not exist"),
        (["{sample}", "--baseline", "/no/such/report.json"], "no such file"),
        (["{sample}", "-o", "x.xyz"], "suffix"),
        (["--pid", "0"], "0 is not in the range"),
        (["--pid", "1", "--ranks", "3-1"], "ends before it starts"),
        (["--pid", "1", "--ranks", "a"], "not a list of ranks"),
        (["/no/such/folder"], "/no/such/folder"),
    ],
)
def test_what_is_refused(words: list[str], error: str, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *(word.replace("{sample}", str(sample)) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert (out, error in err, "Traceback" in err) == ("", True, False), err


def test_traces_that_cannot_tell_are_exit_code_2(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 alone waits for rank 1's loader, which looks like communication: its own small pauses are no cause."""
    assert main(["diagnose", str(sample / "rank0.pt.trace.json.gz")]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "Can't tell who: rank 1 was not recorded, and waiting for a late one of them looks like" in out
    assert "In the next ten minutes" not in out
    assert "- Capture the missing ranks (1) with the others: the late one may be among them." in out
    assert "- 1 rank of 2 not recorded (1): a late one among them would show as communication" in out
