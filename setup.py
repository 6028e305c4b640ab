"""Builds the program and the extension by cargo, for `pip install .` and `pip wheel .`. The rest is in pyproject.toml.

`BYWASH_BUILD_PROFILE` is the profile of cargo, `dist` by default. Cargo's own variables apply, as `CARGO_TARGET_DIR`: a build in a
clone takes what `cargo build` has left there. `BYWASH_PREBUILT` is a folder that has both files already: cargo is not called then.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Part of setuptools, which has no other name for it.
from distutils.command.build_scripts import build_scripts  # isort: skip

ROOT = Path(__file__).resolve().parent


def built(file, package, *arguments):
    """Returns the path of `file`, a product of the package: of a former build, or built now."""
    if prebuilt := os.environ.get("BYWASH_PREBUILT"):
        return Path(prebuilt, file)
    profile = os.environ.get("BYWASH_BUILD_PROFILE", "dist")
    command = [
        "cargo", "build", "--locked", "--profile", profile, "--package", package, "--message-format", "json-render-diagnostics",
        *arguments,
    ]  # fmt: skip
    try:
        run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    except FileNotFoundError:
        raise SystemExit("cargo is not installed: bywash is built from its Rust sources, see https://rustup.rs") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"cargo failed to build {package}: see its messages above") from error
    messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith(b"{")]
    files = [file for message in messages if message["reason"] == "compiler-artifact" for file in message["filenames"]]
    return next(path for path in map(Path, files) if path.name == file)


class BuildExtension(build_ext):
    """Builds the extension in Rust."""

    def build_extension(self, extension):
        library = built("libbywash_python.so", "bywash-python")
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, target)
        strip(target)


class BuildProgram(build_scripts):
    """Builds the program, which is installed as a script is."""

    def run(self):
        program = built("bywash", "bywash-cli", "--bin", "bywash")
        target = Path(self.build_dir, "bywash")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(program, target)
        strip(target)
        target.chmod(0o755)


def strip(path):
    """Removes debug information, of which a wheel has no use; without the tool it is only larger."""
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", path], check=True)


setup(
    ext_modules=[Extension("bywash._native", sources=[], py_limited_api=True)],
    # Named so that the command runs; it builds the program itself.
    scripts=["crates/bywash-cli/Cargo.toml"],
    cmdclass={"build_ext": BuildExtension, "build_scripts": BuildProgram},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
