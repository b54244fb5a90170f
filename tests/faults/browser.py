"""A page in a real browser: Chromium, spoken to over its DevTools pipe. Standard library only."""

import json
import os
import shutil
import subprocess
import tempfile
import time


def starts(program):
    """Whether there is such a program and it runs: Ubuntu's chromium-browser only says that a snap is wanted."""
    return program and subprocess.run([program, "--version"], capture_output=True, timeout=60).returncode == 0


PROGRAM = next(filter(starts, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"))), None)


class Browser:
    def __init__(self, path, width):
        self.profile = tempfile.TemporaryDirectory(prefix="hyperion-browser-", ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()  # it reads file descriptor 3 and writes to 4
        pipes = f"exec 3<&{ours[0]} 4>&{theirs[1]}; exec \"$@\""
        self.process = subprocess.Popen(
            ["bash", "-c", pipes, "-", PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"], pass_fds=(ours[0], theirs[1]), stderr=subprocess.DEVNULL)
        os.close(ours[0])
        os.close(theirs[1])
        self.requests, self.answers = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb")
        self.number, self.session, self.problems = 0, {}, []
        try:
            self.open(path, width)
        except BaseException:
            self.__exit__()
            raise

    def open(self, path, width):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.resize(width)
        self.call("Page.navigate", url=f"file://{path}")
        end = time.monotonic() + 60
        while not self.value("location.protocol == 'file:' && document.readyState == 'complete'"):
            if time.monotonic() > end:
                raise AssertionError(f"{path} was not loaded")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.requests.close()
        self.answers.close()
        self.profile.cleanup()

    def message(self):
        """The next message; exceptions of the page's script, and what its policy forbids, are kept in problems."""
        text = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            if not byte:
                raise AssertionError("the browser ended")
            text += byte
        message = json.loads(text)
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(message["params"])
        return message

    def call(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params, **self.session}
        self.requests.write(json.dumps(request).encode() + b"\0")
        while (answer := self.message()).get("id") != self.number:
            pass
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def value(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, timeout=60_000)["result"].get("value")

    def save_to(self, folder):
        """Where files go that the page saves."""
        session, self.session = self.session, {}
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self.session = session

    def resize(self, width):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)

    def mouse(self, kind, x, y, clicks=1):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=clicks)

    def drag(self, start, end, y):
        self.mouse("mousePressed", start, y)
        self.mouse("mouseMoved", end, y)
        self.mouse("mouseReleased", end, y)

    def double_click(self, x, y):
        for clicks in (1, 2):
            self.mouse("mousePressed", x, y, clicks)
            self.mouse("mouseReleased", x, y, clicks)
