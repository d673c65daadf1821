"""What is in the released program: licence texts, bill of materials, provenance. Called by dev/dist.

    dist_facts.py licences TARGET             the texts, each with the packages that are under it
    dist_facts.py sbom TARGET                 CycloneDX 1.6, JSON
    dist_facts.py provenance TARGET FILE...   in-toto statement with SLSA provenance 1.0, not signed

Counts what is linked: the crates that cargo resolves for TARGET without those of build scripts, macros and tests, and the C
sources that some of them carry. A crate without a licence text ends it with a message and 1.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

FEATURES = "bundled-openssl"
NAMES = re.compile(r"(?i)^(licen[cs]e|copying|notice|unlicense)")
# C sources within crates: the crate, what it carries, the version's place in the crate's version, licence, folder of the texts.
CARRIED = {
    "rdkafka-sys": ("librdkafka", r"\+(.*)", "BSD-2-Clause", "librdkafka"),
    "openssl-src": ("openssl", r"\+(.*)", "Apache-2.0", "openssl"),
    "curl-sys": ("curl", r"\+curl-(.*)", "curl", "curl"),
    "zstd-sys": ("zstd", r"\+zstd\.(.*)", "BSD-3-Clause", "zstd"),
    "libz-sys": ("zlib", None, "Zlib", "src/zlib"),
    "tikv-jemalloc-sys": ("jemalloc", r"\+([0-9.]+)", "BSD-2-Clause", "jemalloc"),
}


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def linked(target: str) -> list[dict]:
    """The packages of the binary, by name."""
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={target}", f"--features={FEATURES}"))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(one for one, package in packages.items() if package["name"] == "walrelay")
    reached, waiting = {root}, [root]
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            package = packages[dependency["pkg"]]
            is_macro = any("proc-macro" in part["kind"] for part in package["targets"])
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            # openssl-src builds what is linked, though it is asked for by a build script.
            wanted = None in kinds or package["name"] in CARRIED
            if wanted and not is_macro and dependency["pkg"] not in reached:
                reached.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return sorted((packages[one] for one in reached), key=lambda package: (package["name"], package["version"]))


def texts(folder: pathlib.Path) -> list[str]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and NAMES.match(path.name))
    return [path.read_text(errors="replace").strip() for path in files]


def carried(package: dict) -> tuple[str, str, str, pathlib.Path] | None:
    if package["name"] not in CARRIED:
        return None
    name, place, licence, folder = CARRIED[package["name"]]
    sources = pathlib.Path(package["manifest_path"]).parent / folder
    # libz-sys counts its own versions.
    version = re.search(place, package["version"]) if place else re.search(r'ZLIB_VERSION "([^"]+)"', (sources / "zlib.h").read_text())
    return name, version.group(1), licence, sources


def licences(target: str) -> None:
    by_text: dict[str, list[str]] = {}
    without: list[str] = []
    for package in linked(target):
        if package["name"] == "walrelay":
            continue
        title = f"{package['name']} {package['version']} ({package['license']})"
        found = texts(pathlib.Path(package["manifest_path"]).parent)
        if not found:
            without.append(title)
        for text in found:
            by_text.setdefault(text, []).append(title)
        if source := carried(package):
            name, version, licence, folder = source
            found = texts(folder)
            if not found:
                sys.exit(f"error: {name} in {package['name']} has no licence text in {folder}")
            for text in found:
                by_text.setdefault(text, []).append(f"{name} {version} ({licence})")
    print("Licences of what is linked into walrelay. Its own are LICENSE-MIT and LICENSE-APACHE.")
    if without:
        print("\nThese packages name their licence and carry no text; the texts of those licences are below:")
        print("\n".join(f"  {title}" for title in without))
    for text, titles in by_text.items():
        print("\n" + "=" * 100 + "\n" + "\n".join(titles) + "\n" + "-" * 100 + "\n" + text)


def sbom(target: str) -> None:
    checksums = {}
    for block in pathlib.Path("Cargo.lock").read_text().split("[[package]]"):
        fields = dict(re.findall(r'^(\w+) = "(.*)"$', block, re.M))
        checksums[fields.get("name"), fields.get("version")] = fields.get("checksum")
    components, root = [], {}
    for package in linked(target):
        purl = f"pkg:cargo/{package['name']}@{package['version']}"
        component = {
            "type": "library",
            "bom-ref": purl,
            "name": package["name"],
            "version": package["version"],
            "purl": purl,
            "licenses": [{"expression": package["license"].replace("/", " OR ")}],
        }
        if checksum := checksums.get((package["name"], package["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["name"] == "walrelay":
            root = component | {"type": "application"}
            continue
        components.append(component)
        if source := carried(package):
            name, version, licence, _ = source
            components.append({
                "type": "library",
                "bom-ref": f"pkg:generic/{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:generic/{name}@{version}",
                "licenses": [{"license": {"id": licence}}],
                "description": f"C sources within {package['name']}",
            })
    print(json.dumps({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, commit() + target)}",
        "version": 1,
        "metadata": {"timestamp": commit_time(), "component": root, "properties": [{"name": "cargo:target", "value": target}]},
        "components": components,
    }, indent=2))


def provenance(target: str, files: list[str]) -> None:
    paths = [pathlib.Path(name) for name in files if pathlib.Path(name).is_file()]
    digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()
    print(json.dumps({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in paths],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "dev/dist",
                "externalParameters": {"target": target, "features": FEATURES, "profile": "release"},
                "internalParameters": {"rustc": run("rustc", "-V").strip(), "cargo": run("cargo", "-V").strip()},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit()}, "annotations": {"changed": bool(run("git", "status", "--porcelain").strip())}},
                    {"name": "Cargo.lock", "digest": {"sha256": digest(pathlib.Path("Cargo.lock"))}},
                ],
            },
            "runDetails": {"builder": {"id": os.environ.get("BUILDER_ID", "local")}, "metadata": {"startedOn": commit_time()}},
        },
    }, indent=2))


def commit() -> str:
    return run("git", "rev-parse", "HEAD").strip()


def commit_time() -> str:
    return datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["licences", target]:
            licences(target)
        case ["sbom", target]:
            sbom(target)
        case ["provenance", target, *files]:
            provenance(target, files)
        case _:
            sys.exit(__doc__)
