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


def render(folder: pathlib.Path) -> list[dict]:
    """The objects that Kustomize makes of a folder: its resources, patched, then labelled."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    objects = []
    for resource in kustomization["resources"]:
        place = folder / resource
        if not place.exists():
            fail(f"{folder}: there is no {resource}")
        objects += render(place) if place.is_dir() else list(yaml.safe_load_all(place.read_text()))
    for patch in kustomization.get("patches", []):
        target = patch["target"]
        chosen = [thing for thing in objects if (thing["kind"], thing["metadata"]["name"]) == (target["kind"], target["name"])]
        if not chosen:
            fail(f"{folder}: there is no {target['kind']} {target['name']} to patch")
        for thing in chosen:
            for change in yaml.safe_load(patch["patch"]):
                apply(change, thing, folder)
    for labels in kustomization.get("labels", []):
        for thing in objects:
            label(thing, labels)
    return objects


def apply(change: dict, thing: dict, folder: pathlib.Path) -> None:
    """One step of a JSON patch."""
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in change["path"].strip("/").split("/"))
    place = thing
    for part in way:
        place = place[int(part) if isinstance(place, list) else part]
    if change["op"] not in ("add", "replace") or isinstance(place, list):
        fail(f"{folder}: {change['op']} of {change['path']} is more than this check knows")
    if change["op"] == "replace" and last not in place:
        fail(f"{folder}: {change['path']} is not in the base")
    place[last] = change["value"]


def label(thing: dict, labels: dict) -> None:
    """Objects get the labels, templates of pods only where that is said."""
    if labels.get("includeSelectors"):
        fail("labels with includeSelectors are more than this check knows")
    places = [thing["metadata"]]
    if labels.get("includeTemplates") and "template" in thing.get("spec", {}):
        places.append(thing["spec"]["template"]["metadata"])
    for place in places:
        place.setdefault("labels", {}).update(labels["pairs"])


def selectors(part: object) -> list[dict]:
    """The labels by which an object, or a part of one, chooses pods."""
    if isinstance(part, list):
        return [found for value in part for found in selectors(value)]
    if not isinstance(part, dict):
        return []
    own = [part["spec"]["selector"]] if part.get("kind") == "Service" else []
    for key, value in part.items():
        own += [value] if key == "matchLabels" else selectors(value)
    return own


def check_overlay(folder: pathlib.Path) -> None:
    """What a kustomization names is there, its patches fit, and whatever chooses pods chooses ours."""
    objects = render(folder)
    pods = [thing["spec"]["template"]["metadata"]["labels"] for thing in objects if "template" in thing.get("spec", {})]
    count = 0
    for thing in objects:
        for selector in selectors(thing):
            count += 1
            if not any(selector.items() <= labels.items() for labels in pods):
                fail(f"{folder}: {thing['kind']} {thing['metadata']['name']} chooses pods by {selector}, and there are {pods}")
    print(f"{'ok':<10} {folder}: its resources are there, its patches fit, its {count} selectors find the pods")


if __name__ == "__main__":
    check_dashboard(pathlib.Path("docker/grafana/walrelay.json"))
    for overlay in sorted(pathlib.Path("packaging/kubernetes").iterdir()):
        check_overlay(overlay)
