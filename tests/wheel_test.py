"""The wheel that scripts/package.sh --wheel makes of build/: what is in it, what it needs of a system, and that it trains where only pip
has installed it. tests/packaging/roots.sh does the same in systems of their own.

    python3 tests/wheel_test.py SOURCE_FOLDER

Standard library, readelf and, where .venv-interop has it, auditwheel.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
# What the tag manylinux_2_34 promises (RHEL 9), and what torch brings.
HIGHEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0), "GOMP": (4, 0)}
OF_THE_SYSTEM = r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so\.\d"
OF_TORCH = {"libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so", "libgomp.so.1", "libcudart.so.13", "libnccl.so.2",
            "libarrow.so.2600", "libparquet.so.2600"}  # the last two of pyarrow
SMALL = ["--training.steps=4", "--training.seq_len=128", "--training.local_batch_size=2", "--comm.speed_check_seconds=0",
         "--debug.seed=1"]  # the loss falls in so few steps
AUDIT = """
import pathlib, sys
from auditwheel.wheel_abi import analyze_wheel_abi
found = analyze_wheel_abi(None, None, pathlib.Path(sys.argv[1]), frozenset(sys.argv[2].split(",")), disable_isa_ext_check=False, allow_graft=False)
print(found.overall_policy.name)
"""


def torch_folder():
    return Path(re.search("^torch (.*)$", (ROOT / "build/setup").read_text(), re.MULTILINE)[1])


def make_wheel(folder, **variables):
    done = subprocess.run([ROOT / "scripts/package.sh", "--wheel", "--no-build", "--into", folder], capture_output=True, text=True, timeout=600,
                          env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    cuda = "yes" if (ROOT / "build/libhyperion_cuda.so").exists() else "no"
    assert f"CUDA code: {cuda}\n" in done.stderr, done.stderr
    return wheel


def make_venv(folder):
    """By this Python, or the system's where this one has no ensurepip."""
    for python in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run([python, "-m", "venv", "--clear", folder], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            return
    raise AssertionError(f"no virtual environment can be made: {done.stdout}{done.stderr}")


def plain_environment():
    """Without what the user has set for Hyperion, Python and the loader."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("HYPERION", "PYTHON", "LD_"))}


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp()).resolve()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.wheel = make_wheel(cls.folder / "made")
        with zipfile.ZipFile(cls.wheel) as archive:
            archive.extractall(cls.folder / "unpacked")
        cls.venv = cls.folder / "venv"
        make_venv(cls.venv)
        subprocess.run([cls.venv / "bin/pip", "install", "--quiet", "--no-index", "--no-deps", cls.wheel], check=True, timeout=300)
        (cls.site,) = cls.venv.glob("lib/python3*/site-packages")
        cls.elf = [path for path in (cls.folder / "unpacked").rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]

    def setUp(self):
        self.work = Path(tempfile.mkdtemp(dir=self.folder))

    def run_command(self, name, *arguments, torch=torch_folder(), before=(), **variables):
        """The installed command, after the words of `before`, in a folder of its own, with `torch` (None: none) as the torch of its Python."""
        path_file = self.site / "torch.pth"
        path_file.write_text(f"{torch.parent}\n" if torch else "")
        return subprocess.run([*before, self.venv / "bin" / name, *arguments], cwd=self.work, capture_output=True, text=True, timeout=300,
                              env={**plain_environment(), "HYPERION_DEVICE": "cpu", **{key: str(value) for key, value in variables.items()}})

    def assert_refused(self, done, *texts, code=2):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertLessEqual(len(done.stderr.splitlines()), 2, done.stderr)

    def assert_trains(self, done):
        losses = [float(text) for text in re.findall(r"step:\s+\d+ .*?loss:\s+([\d.]+)", done.stdout)]
        self.assertEqual((done.returncode, len(losses)), (0, 4), done.stdout + done.stderr)
        self.assertLess(losses[-1], losses[0])

    def other_torch(self, version="2.11.0", libc10=b"__cxx11", name="other"):
        folder = self.work / name / "torch"
        (folder / "lib").mkdir(parents=True)
        (folder / "version.py").write_text(f"__version__ = '{version}'\n")
        (folder / "lib/libtorch_cpu.so").write_bytes(b"")
        (folder / "lib/libc10.so").write_bytes(libc10)
        return folder

    # --- what is in it ---

    def test_the_same_build_makes_the_same_bytes(self):
        self.assertEqual(make_wheel(self.work).read_bytes(), self.wheel.read_bytes())

    def test_a_date_of_before_zip_files_is_that_of_the_first(self):
        with zipfile.ZipFile(make_wheel(self.work, SOURCE_DATE_EPOCH="0")) as archive:
            self.assertEqual({entry.date_time for entry in archive.infolist()}, {(1980, 1, 1, 0, 0, 0)})

    def test_it_is_small_and_holds_its_licences_and_nothing_of_torch(self):
        names = [path.name for path in (self.folder / "unpacked").rglob("*")]
        self.assertLess(self.wheel.stat().st_size, 30e6)
        self.assertFalse(OF_TORCH & set(names))
        metadata = next((self.folder / "unpacked").glob("*.dist-info"))
        text = (metadata / "METADATA").read_text()
        self.assertIn("Requires-Dist: torch (==2.11.*)", text)
        self.assertIn("Requires-Dist: pyarrow (==26.0.1) ; extra == 'parquet'", text)
        self.assertIn(f"\nCUDA code: {'yes' if 'libhyperion_cuda.so' in names else 'no'}\n", text)
        licenses = {path.name for path in (metadata / "licenses").iterdir()}
        self.assertLessEqual({"hyperion", "libjemalloc2", "libpcre2-8-0", "libspdlog-dev", "libzstd1"}, licenses)
        self.assertEqual(len(licenses), len([name for name in names if ".so." in name]) + 6 + ("libhyperion_arrow.so" in names))

    def test_no_file_needs_more_of_a_system_than_the_tag_promises(self):
        brought = {path.name for path in self.elf}
        for path in self.elf:
            with self.subTest(path.name):
                said = subprocess.run(["readelf", "--version-info", "--wide", path], capture_output=True, text=True, check=True).stdout
                said = re.sub(r"(?ms)^Version definition section.*?(?=^Version needs section|\Z)", "", said)
                for prefix, version in re.findall(r"Name: ([A-Z]+)_([\d.]+)", said):
                    self.assertLessEqual(tuple(map(int, version.split("."))), HIGHEST[prefix], prefix)
                said = subprocess.run(["readelf", "--dynamic", "--wide", path], capture_output=True, text=True, check=True).stdout
                for library in re.findall(r"\(NEEDED\).*\[(.*)\]", said):
                    self.assertTrue(library in brought | OF_TORCH or re.fullmatch(OF_THE_SYSTEM, library), library)

    def test_auditwheel_finds_the_tag_right(self):
        python = ROOT / ".venv-interop/bin/python"
        if subprocess.run([python, "-c", "import auditwheel"], capture_output=True, check=False).returncode if python.exists() else True:
            self.skipTest("no auditwheel: scripts/setup.sh --interop installs it")
        said = subprocess.run([python, "-c", AUDIT, self.wheel, ",".join(OF_TORCH)], capture_output=True, text=True, check=True).stdout
        self.assertIn(said.strip(), self.wheel.name)

    # --- that it runs ---

    def test_a_preset_trains_from_any_folder(self):
        self.assert_trains(self.run_command("hyperion", "train", "debug_model", *SMALL, "--metrics.alert_command=cat > new && mv new heard"))
        heard = self.work / "heard"
        for _ in range(1200):  # by the wheel's Python, which may outlive the job
            if not heard.exists():
                time.sleep(0.05)
        self.assertIn('"reason": "completed"', heard.read_text())

    def test_a_file_of_the_working_folder_trains(self):
        shutil.copy(ROOT / "configs/debug_model.toml", self.work / "mine.toml")
        self.assert_trains(self.run_command("hyperion", "train", "mine.toml", *SMALL))

    def test_the_launcher_starts_ranks_of_the_installed_program(self):
        done = self.run_command("hyperion-launch", "debug_model", *SMALL, NPROC=2)
        self.assert_trains(done)
        self.assertIn("dp_shard 2", done.stdout)
        self.assertEqual(self.run_command("hyperion-launch", "--help").returncode, 0)
        self.assertEqual(self.run_command("hyperion-launch").returncode, 2)

    def test_slurm_gets_the_script_and_the_program_of_the_wheel(self):
        sbatch = self.work / "sbatch"
        sbatch.write_text('#!/bin/sh\necho "$@"\necho $HYPERION_ROOT $HYPERION_BINARY $HYPERION_PYTHON\n')
        sbatch.chmod(0o755)
        done = self.run_command("hyperion-slurm", "--nodes=2", "debug_model", "--training.steps=1", PATH=f"{self.work}:{os.environ['PATH']}",
                                HYPERION_ROOT="/a/checkout")
        package = self.site / "hyperion_trainer"
        arguments, variables = done.stdout.splitlines()
        self.assertEqual(arguments, f"--nodes=2 {package}/scripts/train.slurm debug_model --training.steps=1", done.stderr)
        self.assertRegex(variables, rf"^{re.escape(f'{package} {self.venv}/bin/hyperion {self.venv}/bin/python')}[\d.]*$")
        self.assert_refused(self.run_command("hyperion-slurm", "debug_model", PATH="/nowhere"), "sbatch cannot be run")

    def test_parquet_is_read_with_the_pyarrow_beside_torch_or_refused_with_the_command_of_pip(self):
        if not (self.site / "hyperion_trainer/libexec/libhyperion_arrow.so").exists():
            self.skipTest("this build has no pyarrow")
        tokenize = ["tokenize", ROOT / "tests/assets/arrow/small.parquet", "--out", self.work / "shard", "--tokenizer", ROOT / "tests/assets/tokenizer"]
        self.assert_refused(self.run_command("hyperion", *tokenize, HYPERION_ARROW=self.work), f"HYPERION_ARROW={self.work} has no libarrow.so.2600",
                            "python3 -m pip install pyarrow==26.0.1")
        done = self.run_command("hyperion", *tokenize)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 files, 4 documents", done.stdout + done.stderr)

    def test_a_processor_without_avx2_trains_and_says_that_it_is_slow(self):
        emulator = shutil.which("qemu-x86_64")
        if emulator is None:
            self.skipTest("no qemu-x86_64 (Debian: apt-get install qemu-user)")
        program = self.site / "hyperion_trainer/libexec/hyperion"
        path = ":".join(map(str, [torch_folder() / "lib", *torch_folder().parent.glob("nvidia/*/lib"), f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/lib64"]))
        chosen = ("HYPERION_CPU_INSTRUCTIONS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")  # of this processor
        environment = {name: value for name, value in plain_environment().items() if name not in chosen}
        done = subprocess.run([emulator, "-cpu", "Nehalem", program, "train", "debug_model", *SMALL, "--training.steps=1", "--training.seq_len=16",
                               "--training.local_batch_size=1"], cwd=self.work, capture_output=True, text=True, timeout=600,
                              env={**environment, "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": path})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("WARNING - This processor has no AVX2", done.stdout)
        self.assertIn("Training completed", done.stdout)

    def test_of_several_torches_the_first_is_used(self):
        (self.other_torch() / "version.py").unlink()  # what comes later need not even be whole
        done = self.run_command("hyperion", "--version", torch=self.work / "other/torch", PYTHONPATH=torch_folder().parent)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_cuda_libraries_are_found_in_another_folder_of_the_path_than_torch(self):
        folders = [self.work / "lib64", self.work / "lib"]
        (folders[0] / "torch").mkdir(parents=True)
        (folders[1] / "nvidia/cuda_runtime/lib").mkdir(parents=True)
        script = ("import sys, hyperion_trainer.commands as commands; sys.path[:0] = sys.argv[1:]; "
                  "print(commands.environment()['LD_LIBRARY_PATH'])")
        for name in ("lib", "version.py"):
            (folders[0] / "torch" / name).symlink_to(torch_folder() / name)
        done = self.run_command("python", "-c", script, *folders)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({f"{folders[0]}/torch/lib", f"{folders[1]}/nvidia/cuda_runtime/lib"}, set(done.stdout.strip().split(":")))

    # --- what it refuses ---

    def test_an_unknown_preset_is_refused_with_the_nearest(self):
        self.assert_refused(self.run_command("hyperion", "train", "debug_modle"), "did you mean debug_model?", "llama3_8b")

    def test_a_folder_of_logs_that_cannot_be_made_is_refused(self):
        self.assert_refused(self.run_command("hyperion-launch", "debug_model", HYPERION_LOG_DIR="/proc/none"), "/proc/none", "set HYPERION_LOG_DIR")

    def test_no_torch_and_another_torch_are_refused_with_the_command_of_pip(self):
        install = "-m pip install torch==2.11.0"
        self.assert_refused(self.run_command("hyperion", torch=None), "there is no torch 2.11", install)
        self.assert_refused(self.run_command("hyperion", HYPERION_TORCH="/nowhere"), "/nowhere has no lib/libtorch_cpu.so", install)
        other = self.other_torch(version="2.10.0+cu128")
        self.assert_refused(self.run_command("hyperion", torch=other), "is 2.10.0+cu128", "made for 2.11", install)
        done = self.run_command("hyperion-launch", "debug_model", PYTHONPATH=other.parent)
        self.assert_refused(done, f"{other} is 2.10.0", "made for 2.11", f"HYPERION_TORCH={torch_folder()}")
        (other / "version.py").write_text("__version__ = '2.11.0'\n")
        self.assert_refused(self.run_command("hyperion", torch=other), "this system lacks what Hyperion needs", install)
        (other / "lib/libc10.so").write_bytes(b"")
        self.assert_refused(self.run_command("hyperion", torch=other), "C++ ABI", install)

    def test_a_wheel_without_cuda_code_is_refused_where_there_is_a_gpu(self):
        library = self.site / "hyperion_trainer/libexec/libhyperion_cuda.so"
        if library.exists():
            library.rename(self.work / library.name)
            self.addCleanup((self.work / library.name).rename, library)
        lists = self.work / "nvidia-smi"
        lists.write_text("#!/bin/sh\necho GPU 0: NVIDIA H100\n")
        lists.chmod(0o755)
        done = self.run_command("hyperion-launch", "debug_model", HYPERION_DEVICE="auto", PATH=f"{self.work}:{os.environ['PATH']}")
        self.assert_refused(done, "CUDA code was not built", "CUDA code: yes", "HYPERION_DEVICE=cpu")
        self.assertNotIn("scripts/", done.stderr)

    def test_a_torch_without_cuda_is_refused_where_there_is_a_gpu(self):
        simulated = ROOT / "build/libsimulated_gpu.so"
        if not simulated.exists():
            self.skipTest("this build has no CUDA code")
        torch = self.work / "cpu/torch"
        (torch / "lib").mkdir(parents=True)
        for path in [torch_folder() / "version.py", *(torch_folder() / "lib").iterdir()]:
            if "_cuda" not in path.name:
                (torch / path.relative_to(torch_folder())).symlink_to(path)
        nvidia = torch_folder().parent / "nvidia"
        if nvidia.exists():
            (torch.parent / "nvidia").symlink_to(nvidia)
        options = {"torch": torch, "HYPERION_DEVICE": "auto", "LD_PRELOAD": simulated}
        self.assert_refused(self.run_command("hyperion", "train", "debug_model", *SMALL, **options), "CUDA library cannot be used", "_cuda.so",
                            "pip install --force-reinstall torch==2.11.0", "HYPERION_DEVICE=cpu")

    def test_a_driver_of_cuda_12_is_refused_with_the_one_that_is_needed(self):
        source, driver = self.work / "driver.c", self.work / "libcuda.so.1"
        source.write_text("int cuInit(unsigned flags) { return 0; }\nint cuDeviceGetCount(int *n) { *n = 2; return 0; }\n"
                          "int cuDriverGetVersion(int *version) { *version = 12080; return 0; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, source], check=True, timeout=300)
        done = self.run_command("hyperion", "train", "debug_model", *SMALL, HYPERION_DEVICE="auto", LD_LIBRARY_PATH=self.work)
        self.assert_refused(done, "2 GPUs", "driver serves CUDA up to 12.8, and CUDA 13.0 needs driver 580 or newer", "HYPERION_DEVICE=cpu")

    def test_a_wheel_or_a_torch_on_noexec_is_refused(self):
        torch = torch_folder()
        for folder, says in ((self.site / "hyperion_trainer", "libexec/hyperion cannot be run"), (torch / "lib", "failed to map segment")):
            with self.subTest(folder):
                noexec = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,bind,noexec "$0" || exit 77; exec "$@"', folder]
                done = self.run_command("hyperion", "train", "debug_model", before=noexec)
                if done.returncode == 77:
                    self.skipTest(f"nothing can be mounted here: {done.stderr}")
                self.assert_refused(done, says, "on a file system that is not mounted noexec")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
