#!/usr/bin/env python3
"""Reads the recipes: that of conda-forge is rendered for Linux by rattler-build's own parser; vcpkg's manifest has at
least what a port needs. That their versions are the repository's is a test of its own, tests/python/test_package.py."""

from __future__ import annotations

import json
import pathlib
import sys

from rattler_build import Stage0Recipe, VariantConfig

HERE = pathlib.Path(__file__).parent


def main() -> int:
    recipe = Stage0Recipe.from_file(str(HERE / "conda-forge/recipe.yaml"))
    rendered = recipe.render(VariantConfig({"python": ["3.12.*"], "cxx_compiler": ["gxx"], "c_stdlib": ["sysroot"]}))
    if not rendered:
        sys.exit("conda-forge/recipe.yaml: nothing is built for this platform")
    port = json.loads((HERE / "vcpkg/rootdk/vcpkg.json").read_text(encoding="utf-8"))
    missing = {"name", "version", "description", "license", "dependencies"} - port.keys()
    if missing or not (HERE / "vcpkg/rootdk/portfile.cmake").exists():
        sys.exit(f"vcpkg/rootdk: {sorted(missing)} missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
