"""The recipe for Conan 2, from a checkout: conan create packaging/conan --build=missing. Version and sources are the
repository's."""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir

COMPONENTS = ("nn", "theory", "checkpoint", "audit", "lab", "report")


class RootdkConan(ConanFile):
    name = "rootdk"
    license = "Apache-2.0"
    description = "Scaled dot-product attention that can be seen into"
    topics = ("attention", "transformer", "softmax")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "lab": [True, False]}
    default_options = {"shared": False, "fPIC": True, "lab": False}
    implements = ["auto_shared_fpic"]

    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._root(), "CMakeLists.txt"))
        self.version = re.search(r"project\(rootdk\s+VERSION ([0-9.]+)", text)[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "web/*"):
            copy(self, pattern, self._root(), self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("highway/[>=1.0.3]")
        self.requires("fmt/[>=9]")
        if self.options.lab:
            self.requires("eigen/[>=3.4 <4]")
            self.requires("nlohmann_json/[>=3.11 <4]")
            self.requires("zlib/[>=1.2.11 <2]")

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for option in ("TESTS", "EXAMPLES", "APPS", "CUDA"):
            toolchain.cache_variables[f"ROOTDK_{option}"] = False
        for component in COMPONENTS:
            toolchain.cache_variables[f"ROOTDK_{component.upper()}"] = bool(self.options.lab)
        toolchain.generate()
        found = CMakeDeps(self)
        found.set_property("highway", "cmake_file_name", "hwy")
        found.set_property("highway", "cmake_target_name", "hwy::hwy")
        found.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))

    def package_info(self):
        self.cpp_info.components["core"].libs = ["rootdk"]
        self.cpp_info.components["core"].set_property("cmake_target_name", "rootdk::rootdk")
        self.cpp_info.components["core"].requires = ["highway::highway", "fmt::fmt"]
        self.cpp_info.components["core"].system_libs = ["gomp", "m", "dl"]
        stands_on = {
            "audit": ["nn", "theory", "checkpoint"],
            "lab": ["nn", "theory", "checkpoint"],
            "report": ["theory", "audit", "lab"],
        }
        uses = {
            "nn": ["eigen::eigen"],
            "theory": ["eigen::eigen"],
            "checkpoint": ["nlohmann_json::nlohmann_json", "zlib::zlib"],
        }
        for component in COMPONENTS if self.options.lab else ():
            info = self.cpp_info.components[component]
            info.libs = [f"rootdk_{component}"]
            info.set_property("cmake_target_name", f"rootdk::{component}")
            info.requires = ["core", *stands_on.get(component, []), *uses.get(component, [])]
