"""Put the site that was just built beside those of other versions, and offer all of them in its menu.

    python tools/site_versions.py            # build/site becomes site/0.2, for a version 0.2.x
    python tools/site_versions.py --as dev   # or site/dev

`site` then holds a folder for each version, `versions.json`, which the pages read, and an `index.html` that leads to
the newest. Serve it with any web server; a single version also opens from disk.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import lessmore

ROOT = Path(__file__).parents[1]
BUILT, SITE = ROOT / "build" / "site", ROOT / "site"
FIRST_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>lessmore</title>
<meta http-equiv="refresh" content="0; url={0}/index.html"><a href="{0}/index.html">lessmore {0}</a></html>
"""


def publish(built: Path, site: Path, version: str) -> list[str]:
    """Move a built site to its place.

    Args:
        built: Where it was built; gone afterwards.
        site: Where all versions are.
        version: Name of this one; an older site of the same name is replaced.

    Returns:
        All versions, the newest first.
    """
    site.mkdir(exist_ok=True)
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.move(built, site / version)
    found = sorted((one.name for one in site.iterdir() if (one / "index.html").is_file()), key=_age, reverse=True)
    entries = [{"version": one, "title": one, "aliases": ["latest"] if one == found[0] else []} for one in found]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(FIRST_PAGE.format(found[0]), encoding="utf-8")
    return found


def _age(version: str) -> tuple[bool, list[int]]:
    """Numbers count as numbers; names such as `dev` are older than any of them."""
    return version[:1].isdigit(), [int(part) for part in re.findall(r"\d+", version)]


def main() -> None:
    """Publish what `zensical build` left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = ".".join(lessmore.__version__.split(".")[:2])
    parser.add_argument("--as", dest="version", default=own, help="name of the version (default: %(default)s)")
    version = parser.parse_args().version
    print(f"site/{version}/index.html, beside {', '.join(publish(BUILT, SITE, version))}")


if __name__ == "__main__":
    main()
