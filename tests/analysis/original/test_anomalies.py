"""The anomaly detector against every golden case."""

import pytest
from tests.golden.reading import Sentences, cases, differences, numbers

from gradwatch.analysis.original.anomalies import AnomalyDetector
from gradwatch.analysis.result import plain
from gradwatch.errors import GradwatchError

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("anomaly_detection"), ids=lambda case: case["name"])
def test_anomalies_are_the_original_ones(case) -> None:
    given = numbers(case["input"])
    detector = AnomalyDetector(given["sensitivity"], given["window"], enabled=given["enabled"])
    if case.get("panic"):
        with pytest.raises(GradwatchError, match="The original panics here"):
            detector.establish_baseline("l", given["baselines"][0]["values"])
        return
    for item in given["baselines"]:
        detector.establish_baseline(item["layer"], item["values"])
    detections = [detector.detect(i["layer"], i["value"], i["step"]) for i in given["stream"]]
    expected = case["output"]
    found = {
        "baseline_statistics": plain(detector.baselines),
        "detections": plain(detections),
        "history_length": len(detector.history),
        "summary_all": detector.summary().to_dict(),
        "summary_by_layer": {
            layer: detector.summary(layer).to_dict() for layer in expected["summary_by_layer"]
        },
    }
    if case.get("truncated"):
        found["detections_count"] = len(found["detections"])
        found["detections"] = found["detections"][:15] + found["detections"][-5:]
        for summary in (found["summary_all"], *found["summary_by_layer"].values()):
            summary["anomalies_count"] = len(summary["anomalies"])
            summary["anomalies"] = summary["anomalies"][:3] + summary["anomalies"][-3:]
    assert not list(differences(expected, found, SENTENCES))
