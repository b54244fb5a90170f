"""Packs a folder as a wheel, for scripts/package.sh --wheel: the same bytes for the same files.

    python3 make_wheel.py FOLDER VERSION PLATFORM INTO

FOLDER holds hyperion_trainer/, the package as it is installed. The date of all files is SOURCE_DATE_EPOCH's, at
least 1980, with which zip's dates begin. Prints the wheel's path.
"""
import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

NAME = "hyperion_trainer"
METADATA = """Metadata-Version: 2.4
Name: hyperion-trainer
Version: {version}
Summary: A distributed trainer for Llama-style language models in C++ on libtorch, with torchtitan's configuration files
License-Expression: BSD-3-Clause
{license_files}
Requires-Python: >=3.10
Requires-Dist: torch (==2.11.*)
Provides-Extra: parquet
Requires-Dist: pyarrow (==26.0.1) ; extra == 'parquet'
Description-Content-Type: text/markdown

Installs three commands. `hyperion train debug_model` trains a small model on a small corpus, both of which are in the package;
`hyperion train FILE.toml` trains what the file says; `hyperion --help` lists the other commands. `hyperion-launch FILE.toml` starts `NPROC`
ranks on this host, and `hyperion-slurm FILE.toml` submits a job to SLURM. The libraries that the program brings have licences of their own.
With the extra `parquet` the program reads Parquet and Arrow files.

CUDA code: {cuda}
"""
WHEEL = """Wheel-Version: 1.0
Generator: hyperion make_wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
hyperion = hyperion_trainer.commands:hyperion
hyperion-launch = hyperion_trainer.commands:launch
hyperion-slurm = hyperion_trainer.commands:slurm
"""


def main():
    folder, version, platform, into = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
    files = {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o100)
             for path in folder.rglob("*") if path.is_file()}
    information, tag = f"{NAME}-{version}.dist-info", f"py3-none-{platform}"
    licences = {name: content for name, content in files.items() if name.startswith(f"{NAME}/licenses/")}
    for name in licences:
        del files[name]
    for name, content in licences.items():
        files[f"{information}/{name.removeprefix(NAME + '/')}"] = content
    license_files = "\n".join(f"License-File: {name.split('/', 2)[2]}" for name in sorted(licences))
    cuda = "yes" if f"{NAME}/libexec/libhyperion_cuda.so" in files else "no"
    texts = {"METADATA": METADATA.format(version=version, license_files=license_files, cuda=cuda), "WHEEL": WHEEL.format(tag=tag),
             "entry_points.txt": ENTRY_POINTS}
    files |= {f"{information}/{name}": (text.encode(), 0) for name, text in texts.items()}
    record = f"{information}/RECORD"
    lines = []
    for name, (content, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files[record] = ("".join([*lines, f"{record},,\n"]).encode(), 0)

    wheel = into / f"{NAME}-{version}-{tag}.whl"
    date = time.gmtime(max(315532800, int(os.environ["SOURCE_DATE_EPOCH"])))[:6]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: (name == record, name)):
            content, executable = files[name]
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, content)
    print(wheel)


if __name__ == "__main__":
    main()
