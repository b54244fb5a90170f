"""Writes the list of what a release's wheels link and need, in CycloneDX's form, for scripts/release.sh.

    python3 make_sbom.py VERSION COMMIT FOLDER ARCH=DPKG_FOLDER...

FOLDER holds hyperion_trainer-VERSION-*_ARCH.whl, whose licences name the Debian packages that are linked or compiled in; DPKG_FOLDER is where
dpkg knows their versions. Needs scripts/requirements/release.lock. SOURCE_DATE_EPOCH is the list's time.
"""
import datetime
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import uuid
import zipfile

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

# Debian package -> the licence of what is linked, as SPDX writes it.
LICENSES = {
    "libcli11-dev": "BSD-3-Clause", "libdeflate0": "MIT", "libfmt9": "MIT", "libjemalloc2": "BSD-2-Clause", "libpcre2-8-0": "BSD-3-Clause",
    "libsimdjson14": "Apache-2.0", "libspdlog-dev": "MIT", "libtoml11-dev": "MIT", "libutf8proc2": "MIT AND Unicode-DFS-2015",
    "libxxhash-dev": "BSD-2-Clause", "libzstd1": "BSD-3-Clause OR GPL-2.0-only", "nlohmann-json3-dev": "MIT", "zlib1g": "Zlib"}
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of URLs, by RFC 9562


def component(name, version, license_text, purl, **more):
    return Component(name=name, version=version, licenses=[LicenseFactory().make_from_string(license_text)], purl=purl, bom_ref=purl.to_string(), **more)


def linked(wheel, arch, dpkg):
    """The Debian packages whose licences the wheel has."""
    with zipfile.ZipFile(wheel) as archive:
        names = re.findall(r"^License-File: (.*)$", archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode(), re.MULTILINE)
    for package in sorted({name.rpartition("/")[2] for name in names} - {"hyperion", "pyarrow"}):
        if package not in LICENSES:
            sys.exit(f"[make_sbom.py] the licence of {package} is not known\n  remedy: read its copyright file and add it to LICENSES")
        version, of_arch = subprocess.run(["dpkg-query", f"--admindir={dpkg}", "-W", "-f", "${Version} ${Architecture}\n", package], capture_output=True,
                                          text=True, check=True).stdout.splitlines()[0].split()
        assert of_arch in (DEBIAN_NAMES[arch], "all"), (package, of_arch)
        yield component(package, version, LICENSES[package], PackageURL("deb", "debian", package, version, {"arch": of_arch}))


def main():
    version, commit, folder, *machines = sys.argv[1:]
    folder = pathlib.Path(folder)
    components = {}
    for machine in machines:
        arch, _, dpkg = machine.partition("=")
        (wheel,) = folder.glob(f"*_{arch}.whl")
        components |= {found.bom_ref.value: found for found in linked(wheel, arch, dpkg)}
    torch = component("torch", "2.11.0", "BSD-3-Clause", PackageURL("pypi", None, "torch", "2.11.0"), scope=ComponentScope.REQUIRED,
                      description="not in the files: pip installs it, with the CUDA libraries that it depends on")
    pyarrow = component("pyarrow", "26.0.1", "Apache-2.0", PackageURL("pypi", None, "pyarrow", "26.0.1"), scope=ComponentScope.OPTIONAL,
                        description="its headers are compiled in; its libraries are not in the files: pip installs them for Parquet and Arrow files")
    files = [Component(name=path.name, type=ComponentType.FILE, bom_ref=path.name,
                       hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())])
             for path in sorted(folder.iterdir())]
    hyperion = component("hyperion", version, "BSD-3-Clause", PackageURL("generic", None, "hyperion", version, {"vcs_commit": commit}),
                         type=ComponentType.APPLICATION)
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    bom = Bom(components=[*components.values(), torch, pyarrow, *files], metadata=BomMetaData(component=hyperion, timestamp=time),
              serial_number=uuid.uuid5(NAMESPACE, f"hyperion {version} {commit}"))
    bom.register_dependency(hyperion, [*components.values(), torch, pyarrow])
    (folder / f"hyperion-{version}.cdx.json").write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
