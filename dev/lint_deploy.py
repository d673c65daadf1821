"""The Grafana dashboard, as far as Grafana publishes no schema for it; and what Helm and kustomize make of their files, as it is
kept in packaging/golden.

Called by dev/lint-deploy. Ends with a message and 1 at the first thing that is wrong. `write` writes the alerts as an object of
the Prometheus operator, `sources` prints what the golden files are of.
"""

import hashlib
import json
import pathlib
import re
import sys
import tomllib

import yaml

ALERTS = pathlib.Path("docker/prometheus/alerts.yml")
RULE_OBJECT = pathlib.Path("packaging/kubernetes/monitoring/prometheusrule.yaml")
RUNBOOKS = pathlib.Path("docs/operations.md")
GOLDEN = pathlib.Path("packaging/golden")

COLUMNS = 24
"""Of Grafana's grid."""

ROWS_ON_SCREEN = 24
"""A row is 38 px with its gap: more does not fit on one screen of 1080."""


def fail(text: str) -> None:
    sys.exit(f"error: {text}")


def check_dashboard(path: pathlib.Path) -> None:
    dashboard = json.loads(path.read_text())
    for key in "uid", "title", "schemaVersion", "panels", "templating", "time":
        if key not in dashboard:
            fail(f"{path} has no {key}")
    taken: dict[tuple[int, int], str] = {}
    identifiers = set()
    for panel in dashboard["panels"]:
        title, place = panel["title"], panel["gridPos"]
        if panel["id"] in identifiers:
            fail(f"{path}: {title} has another panel's id")
        identifiers.add(panel["id"])
        if not panel.get("description") or not panel["targets"]:
            fail(f"{path}: {title} lacks a description or targets")
        letters = [target["refId"] for target in panel["targets"]]
        if len(set(letters)) != len(letters):
            fail(f"{path}: {title} has a refId twice")
        if any(target["datasource"]["uid"] != "${datasource}" for target in [panel, *panel["targets"]]):
            fail(f"{path}: {title} is bound to one Grafana's data source")
        if place["x"] + place["w"] > COLUMNS or place["y"] + place["h"] > ROWS_ON_SCREEN:
            fail(f"{path}: {title} is off the screen")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (other := taken.setdefault((x, y), title)) != title:
                    fail(f"{path}: {title} and {other} overlap")
    print(f"{'ok':<10} {path}: {len(identifiers)} panels on one screen")


def selectors(part: object) -> list[dict]:
    """The labels by which an object, or a part of one, chooses pods."""
    if isinstance(part, list):
        return [found for value in part for found in selectors(value)]
    if not isinstance(part, dict):
        return []
    own = [part["spec"]["selector"]] if part.get("kind") == "Service" else []
    for key, value in part.items():
        # Namespaces have labels of their own.
        if key != "namespaceSelector":
            own += [value] if key == "matchLabels" else selectors(value)
    return own


def check_golden(path: pathlib.Path) -> None:
    """Whatever chooses pods chooses ours, and every image has a place."""
    objects = [thing for thing in yaml.safe_load_all(path.read_text()) if thing]
    pods = [labels for thing in objects for labels in pod_labels(thing)]
    count = 0
    for thing in objects:
        for selector in selectors(thing):
            count += 1
            if not any(selector.items() <= labels.items() for labels in pods):
                fail(f"{path}: {thing['kind']} {thing['metadata']['name']} chooses pods by {selector}, and there are {pods}")
    print(f"{'ok':<10} {path}: {len(objects)} objects, its {count} selectors find the pods")


def pod_labels(part: object) -> list[dict]:
    """The labels of each pod that an object makes."""
    if isinstance(part, list):
        return [found for value in part for found in pod_labels(value)]
    if not isinstance(part, dict):
        return []
    own = [part["template"]["metadata"]["labels"]] if "labels" in part.get("template", {}).get("metadata", {}) else []
    return own + [found for value in part.values() for found in pod_labels(value)]


def check_sources(folder: pathlib.Path) -> None:
    """The golden files are of the chart and the kustomizations as they are now."""
    lines = [line.split("  ", 1) for line in (folder / "sources.sha256").read_text().splitlines()]
    if [[digest, name] for name, digest in sources()] != lines:
        fail(f"{folder} is of another chart or kustomization: make golden (needs Go)")
    print(f"{'ok':<10} {folder}: of the chart and the kustomizations as they are")


def sources() -> list[tuple[str, str]]:
    """Each file that the golden files are rendered from, with its digest."""
    folders = [pathlib.Path("packaging/helm"), pathlib.Path("packaging/kubernetes")]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [(str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def rule_object(alerts: pathlib.Path) -> str:
    """The alerts as an object of the Prometheus operator."""
    indented = "".join(f"  {line}" if line.strip() else line for line in alerts.read_text().splitlines(keepends=True))
    head = f"# Written from {alerts} by `make golden`.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n"
    return f"{head}metadata:\n  name: walrelay\nspec:\n{indented}"


def check_rule_object() -> None:
    """The kustomize component has the same alerts."""
    if RULE_OBJECT.read_text() != rule_object(ALERTS):
        fail(f"{RULE_OBJECT} is not of {ALERTS}: make golden")
    print(f"{'ok':<10} {RULE_OBJECT}: of {ALERTS}")


def check_runbooks() -> None:
    """Each alert's link leads to an entry."""
    entries = {"#" + line[4:].strip().lower().replace(" ", "-") for line in RUNBOOKS.read_text().splitlines() if line.startswith("### ")}
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        page, anchor = rule["annotations"]["runbook_url"].split("#")
        if page != str(RUNBOOKS) or f"#{anchor}" not in entries:
            fail(f"{ALERTS}: {rule['alert']} links to {page}#{anchor}, which is not there")
    print(f"{'ok':<10} {ALERTS}: {len(rules)} alerts, each with its entry in {RUNBOOKS}")


def check_versions() -> None:
    """Tests, Compose file and the demonstration on Kubernetes run the same servers."""
    kafka = re.search(r'KAFKA_VERSION: &str = "([^"]+)"', pathlib.Path("dev/src/versions.rs").read_text()).group(1)
    postgres = re.search(r'default_value = "(\d+)"', pathlib.Path("dev/src/main.rs").read_text()).group(1)
    for path in pathlib.Path("docker/compose.yaml"), pathlib.Path("packaging/kubernetes/demo/services.yaml"):
        images = set(re.findall(r"image: ((?:apache/kafka|postgres):\S+)", path.read_text()))
        if images != {f"apache/kafka:{kafka}", f"postgres:{postgres}"}:
            fail(f"{path} has {images}; the tests run Kafka {kafka} and Postgres {postgres}")
    program = tomllib.loads(pathlib.Path("Cargo.toml").read_text())["package"]["version"]
    chart = yaml.safe_load(pathlib.Path("packaging/helm/walrelay/Chart.yaml").read_text())
    if {chart["version"], chart["appVersion"]} != {program}:
        fail(f"the chart's versions are not {program}")
    print(f"{'ok':<10} versions: Kafka {kafka}, Postgres {postgres}, walrelay {program} wherever they stand")


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        RULE_OBJECT.write_text(rule_object(ALERTS))
    elif sys.argv[1:] == ["sources"]:
        print("\n".join(f"{digest}  {name}" for name, digest in sources()))
    else:
        check_dashboard(pathlib.Path("docker/grafana/walrelay.json"))
        check_rule_object()
        check_runbooks()
        check_versions()
        check_sources(GOLDEN)
        for golden in sorted(GOLDEN.glob("*.yaml")):
            check_golden(golden)
