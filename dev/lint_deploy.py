"""The Grafana dashboard, as far as Grafana publishes no schema for it; and what Kustomize would make of the overlays.

Called by dev/lint-deploy. Ends with a message and 1 at the first thing that is wrong.
"""

import json
import pathlib
import sys

import yaml

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


def check_overlay(folder: pathlib.Path) -> None:
    """What a kustomization names is there, and its patches fit."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for resource in kustomization["resources"]:
        if not (folder / resource).exists():
            fail(f"{folder}: there is no {resource}")
    for patch in kustomization.get("patches", []):
        deployment = yaml.safe_load((folder / "../base/deployment.yaml").read_text())
        for change in yaml.safe_load(patch["patch"]):
            *way, last = change["path"].strip("/").split("/")
            place = deployment
            for part in way:
                place = place[int(part) if isinstance(place, list) else part]
            if change["op"] == "replace" and last not in place:
                fail(f"{folder}: {change['path']} is not in the base")
    print(f"{'ok':<10} {folder}: its resources are there, its patches fit")


if __name__ == "__main__":
    check_dashboard(pathlib.Path("docker/grafana/walrelay.json"))
    for overlay in sorted(pathlib.Path("packaging/kubernetes").iterdir()):
        check_overlay(overlay)
