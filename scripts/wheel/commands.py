"""The commands of the wheel (scripts/package.sh --wheel): each finds the installed torch 2.11 and becomes the program, with torch's
libraries in LD_LIBRARY_PATH, or what starts it.

    hyperion          the program
    hyperion-launch   trains on this host with NPROC ranks, as scripts/train.sh does
    hyperion-slurm    submits a training to SLURM, by scripts/train.slurm

What cannot be used ends with one message and exit code 2 (docs/exit_codes.md). Standard library only.
"""
import signal

# USR1, the warning of SLURM, waits until the program can answer it.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

import errno
import os
import pathlib
import re
import stat
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent
PROGRAM = PACKAGE / "libexec/hyperion"
INSTALL = f"{sys.executable} -m pip install torch==2.11.0"
LAUNCH_USAGE = """usage: hyperion-launch FILE.toml|PRESET [--section.key=value ...]
  NPROC=N              ranks on this host; default: the GPUs present, else 1
  NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT   several hosts: run it on each, with the same MASTER_ADDR
  LOG_RANK=0,3         the ranks whose output is shown; default 0
  HYPERION_DEVICE=cpu  train on the CPU even where there is a GPU
The options of a training are listed by: hyperion train --help"""
SLURM_USAGE = """usage: hyperion-slurm [option of sbatch as --name=value ...] FILE.toml|PRESET [--section.key=value ...]
  HYPERION_WRAPPER, HYPERION_PROLOG, HYPERION_SRUN_ARGS, HYPERION_LOG_DIR and others: `bash SCRIPT --help` explains them, with
  SCRIPT = """ + str(PACKAGE / "scripts/train.slurm")


def fail(problem, remedy):
    text = f"{problem}\n  remedy: {remedy}"
    shown = "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)  # it may hold a variable's value
    print(f"[hyperion] {shown}", file=sys.stderr)
    sys.exit(2)


def read(path):
    """All of a regular file. A pipe or device, which would be waited for, is an OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return file.read()


def find_torches():
    """The torch folder that HYPERION_TORCH names, else those on this Python's path, of which it would import the first."""
    named = os.environ.get("HYPERION_TORCH")
    folders = [named] if named else [os.path.join(entry, "torch") for entry in sys.path]
    found = [pathlib.Path(folder) for folder in folders if os.path.exists(os.path.join(folder, "lib/libtorch_cpu.so"))]
    if not found:
        where = f"HYPERION_TORCH={named} has no lib/libtorch_cpu.so" if named else f"{sys.executable} has no torch"
        fail(f"there is no torch 2.11: {where}", f"{INSTALL}, or set HYPERION_TORCH to its torch folder")
    return found


def version_of(torch):
    """Raises OSError where the file that says it cannot be read."""
    version = re.search(r"^__version__ = '(.*)'", read(torch / "version.py").decode(errors="replace"), re.MULTILINE)
    return version[1] if version else "of no known version"


def is_right(torch):
    try:
        return version_of(torch).startswith("2.11.")
    except OSError:
        return False


def check_torch(torch, others):
    """Refuses what the program was not linked for: another version, or the C++ ABI of before GCC 5."""
    try:
        version = version_of(torch)
        new_abi = b"__cxx11" in read(torch / "lib/libc10.so")
    except (OSError, MemoryError) as error:
        fail(f"the torch in {torch} cannot be used: {error}", f"{INSTALL} --force-reinstall")
    if not version.startswith("2.11."):
        problem = f"the torch in {torch} is {version}, and Hyperion is made for 2.11"
        right = [other for other in others if is_right(other)]
        if right:
            fail(f"{problem}, as in {right[0]}, which comes later on Python's path", f"uninstall the former, or set HYPERION_TORCH={right[0]}")
        fail(problem, INSTALL)
    if not new_abi:
        fail(f"the torch in {torch} is made with the C++ ABI of before GCC 5", f"{INSTALL} --force-reinstall")


def find_arrow():
    """The pyarrow folder on this Python's path with the release that the program reads Parquet with, else the first one or ""."""
    found = [folder for folder in (os.path.join(entry, "pyarrow") for entry in sys.path) if os.path.exists(os.path.join(folder, "__init__.py"))]
    right = [folder for folder in found if os.path.exists(os.path.join(folder, "libparquet.so.2600"))]
    return (right or found or [""])[0]


def environment():
    """The variables with which the loader finds all that the program needs, which is checked."""
    torch, *others = find_torches()
    check_torch(torch, others)
    nvidia = [folder for entry in (torch.parent, *sys.path) for folder in sorted(pathlib.Path(entry).glob("nvidia/*/lib"))]  # RHEL has lib64 and lib
    folders = [*dict.fromkeys([torch / "lib", *nvidia]), pathlib.Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "lib64"]
    path = [str(folder) for folder in folders if folder.is_dir()]
    variables = dict({"HYPERION_ARROW": find_arrow(), "HYPERION_PYTHON": sys.executable}, **os.environ)
    variables["LD_LIBRARY_PATH"] = ":".join([*path, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    try:  # what ldd does
        loaded = subprocess.run([PROGRAM], env={**variables, "LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        fail(f"{PROGRAM} cannot be run: {error.strerror}", "install the wheel on a file system that is not mounted noexec")
    if "failed to map segment" in loaded.stderr:
        fail(loaded.stderr.strip(), f"install torch, now {torch}, on a file system that is not mounted noexec")
    missing = [line.strip() for line in (loaded.stdout + loaded.stderr).splitlines() if "not found" in line]
    if missing or loaded.returncode:
        fail(f"this system lacks what Hyperion needs: {'; '.join(missing) or loaded.stderr.strip()}",
             f"{INSTALL} brings torch's libraries; of the system glibc 2.34 and GCC 11's C++ library are needed")
    return variables


def run(command, variables):
    """Becomes the command."""
    try:
        os.execvpe(command[0], list(map(str, command)), variables)
    except OSError as error:
        fail(f"{command[0]} cannot be run: {error.strerror}", "install it, or check its path")


def hyperion():
    run([PROGRAM, *sys.argv[1:]], environment())


def show_usage(usage):
    if len(sys.argv) == 1 or sys.argv[1] in ("-h", "--help"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
        print(usage, file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        sys.exit(0 if len(sys.argv) > 1 else 2)


def launch():
    show_usage(LAUNCH_USAGE)
    run([sys.executable, PACKAGE / "scripts/launch.py", PROGRAM, "train", *sys.argv[1:]], environment())


def slurm():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    show_usage(SLURM_USAGE)
    options = sys.argv[1:]
    first = next((at for at, option in enumerate(options) if not option.startswith("-")), None)
    if first is None:
        fail("no configuration is named", SLURM_USAGE)
    program = pathlib.Path(sys.argv[0]).resolve().with_name("hyperion")  # it finds torch on the node where it runs
    variables = {"HYPERION_BINARY": str(program), "HYPERION_PYTHON": sys.executable, **os.environ, "HYPERION_ROOT": str(PACKAGE)}
    run(["sbatch", *options[:first], PACKAGE / "scripts/train.slurm", *options[first:]], variables)
