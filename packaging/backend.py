"""The build backend that pyproject.toml names: scikit-build-core, and a last line where a build failed because packages
are missing."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import sys
import sysconfig
import tempfile
from typing import Any, Iterator, Optional

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403  # the hooks to which we add nothing

_DEPENDENCIES = pathlib.Path(__file__).parents[1] / "cmake" / "dependencies.cmake"


def _missing(said_by_cmake: pathlib.Path) -> list[str]:
    """Debian's names of what was not there; of everything, where without a compiler nobody could look."""
    if said_by_cmake.exists():
        packages = said_by_cmake.read_text().split()
    elif shutil.which(os.environ.get("CXX", "c++").split()[0]) is None:
        names = re.search(r"set\(rootdk_debian_names\s+(.*?)\)", _DEPENDENCIES.read_text(), re.S)
        packages = [pair.partition("=")[2] for pair in names[1].split()] if names else ["g++"]
    else:
        packages = []
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists():
        packages.append("python3-dev")
    return packages


@contextlib.contextmanager
def _naming_what_is_missing() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        said = pathlib.Path(folder) / "lacks"
        os.environ["ROOTDK_LACKS_FILE"] = str(said)
        try:
            yield
        except (Exception, SystemExit) as error:
            packages = _missing(said)
            if not packages:
                raise
            if not isinstance(error, SystemExit):
                print(error, file=sys.stderr)
            sys.stdout.flush()
            names = " ".join(packages)
            sys.exit(f"rootdk needs packages that are missing. On Debian and Ubuntu: apt-get install {names}")
        finally:
            del os.environ["ROOTDK_LACKS_FILE"]


def build_wheel(
    wheel_directory: str, config_settings: Optional[dict[str, Any]] = None, metadata_directory: Optional[str] = None
) -> str:
    with _naming_what_is_missing():
        return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Optional[dict[str, Any]] = None, metadata_directory: Optional[str] = None
) -> str:
    with _naming_what_is_missing():
        return _build.build_editable(wheel_directory, config_settings, metadata_directory)
