"""Whether scripts/launch.py starts its ranks again in place, and when (--max-restarts). Imported, never run.

With several hosts (NNODES) each has a launcher. That of host 0 decides for all: the others send it how their ranks ended, over TCP on
HYPERION_RESTART_PORT of MASTER_ADDR, and start again when it says so, which is when the ranks of every host have ended.
"""
import errno
import json
import select
import signal
import socket
import time

import failures

FIRST_SECONDS = 5.0  # before the first restart; each later one waits twice as long
MOST_SECONDS = 300.0
LONG_RUN_SECONDS = 600.0  # a start that ran so long is followed by the first wait again
CONNECT_SECONDS = 20.0  # for the launcher of host 0 to answer at all
MESSAGE_BYTES = 4096


class Signals:
    """The signals that reach this program, to be waited for together with other things."""

    def __init__(self):
        self.wake, self.wake_end = socket.socketpair()  # they arrive here as bytes
        for end in (self.wake, self.wake_end):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wake_end.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def read(self):
        return [number for number in self.wake.recv(4096) if number != signal.SIGCHLD]

    def wait(self, end, sockets=()):
        """The signal that came before the time `end`, or None; and those of the sockets that can be read first."""
        while True:
            ready, _, _ = select.select([self.wake, *sockets], [], [], max(0.0, end - time.monotonic()))
            if self.wake in ready:
                numbers = self.read()
                if numbers:
                    return numbers[0], []
            found = [one for one in ready if one is not self.wake]
            if found or time.monotonic() >= end:
                return None, found


class Stopped(Exception):
    """There is no further start: why; by which signal, where one came."""

    def __init__(self, why, signal_number=None):
        super().__init__(why)
        self.signal_number = signal_number


def stop_by(number):
    return Stopped(f"{signal.Signals(number).name} came", number)


def receive(connection):
    """The message of a connection that can be read: a dict, or None where there is no whole one."""
    try:
        connection.settimeout(5)
        data = b""
        while not data.endswith(b"\n") and len(data) < MESSAGE_BYTES:
            part = connection.recv(MESSAGE_BYTES)
            if not part:
                return None
            data += part
        message = json.loads(data)
        return message if isinstance(message, dict) else None
    except (OSError, ValueError):
        return None


def send(connection, message):
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        pass  # it has left, which the next wait tells


class FirstHost:
    """The launcher of host 0 as the others see it."""

    def __init__(self, address, port, nodes, signals):
        self.nodes, self.signals, self.others = nodes, signals, {}
        self.listener = self.listen(address, port, nodes)

    @staticmethod
    def listen(address, port, nodes):
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        try:
            return socket.create_server(place[:2], family=family, backlog=nodes + 128)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # MASTER_ADDR is another name of this host, as behind NAT
                raise
            return socket.create_server(("", port), backlog=nodes + 128)

    def collect(self, seconds):
        """How the ranks of the other hosts ended, by host; Stopped where one does not say so in time."""
        end = time.monotonic() + seconds
        self.others, reports = {}, {}
        while len(reports) < self.nodes - 1:
            number, ready = self.signals.wait(end, [self.listener])
            if number:
                raise stop_by(number)
            if not ready:
                missing = sorted(set(range(1, self.nodes)) - set(reports))
                raise Stopped(f"host{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} (NODE_RANK) did not report within {seconds:.0f} s "
                              "that all ranks there have ended")
            connection, _ = self.listener.accept()
            message = receive(connection)
            node = message.get("node") if message else None
            if type(node) is int and 0 < node < self.nodes and node not in reports and type(message.get("code")) is int:
                reports[node], self.others[node] = message, connection
            else:
                connection.close()  # no launcher of this job
        return reports

    def wait(self, seconds):
        """The back-off: Stopped by a signal here, or where another launcher has left."""
        number, ready = self.signals.wait(time.monotonic() + seconds, self.others.values())
        if number:
            raise stop_by(number)
        left = [node for node, connection in self.others.items() if connection in ready]
        if left:
            raise Stopped(f"the launcher of host {left[0]} has ended")

    def tell(self, message):
        for connection in self.others.values():
            send(connection, message)
            connection.close()
        self.others = {}


class OtherHost:
    """What the launcher of another host than 0 does: it asks that one."""

    def __init__(self, address, port, node, signals):
        self.place, self.node, self.signals = (address, port), node, signals

    def connect(self):
        end = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                connection = socket.create_connection(self.place, timeout=5)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6)):
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                return connection
            except OSError as error:
                if time.monotonic() > end:
                    raise Stopped(f"the launcher of host 0 does not answer at {self.place[0]}:{self.place[1]} ({error}): it has ended, or was "
                                  "started without --max-restarts") from None
            number, _ = self.signals.wait(time.monotonic() + 0.5)
            if number:
                raise stop_by(number)

    def ask(self, code, why, seconds):
        """Returns the answer of host 0 to start again; Stopped where that one says no, or nothing."""
        with self.connect() as connection:
            send(connection, {"node": self.node, "code": code, "why": why[:500]})
            number, ready = self.signals.wait(time.monotonic() + seconds, [connection])
            if number:
                raise stop_by(number)
            answer = receive(connection) if ready else None
        if answer is None:
            raise Stopped("the launcher of host 0 has ended" if ready else f"the launcher of host 0 did not decide within {seconds:.0f} s")
        if not answer.get("start"):
            raise Stopped(f"host 0 says: {str(answer.get('why'))[:500]}")
        return answer

    def report_end(self, code):
        """Tells host 0, should it wait, that there is nothing more to wait for here."""
        try:
            with socket.create_connection(self.place, timeout=1) as connection:
                send(connection, {"node": self.node, "code": code, "why": failures.describe(code)})
        except OSError:
            pass  # it has ended as well


def read_progress(path):
    """The step that a start began after and the newest it saved, from the file that rank 0 writes; zeros where it wrote none."""
    try:
        before, saved = (int(word) for word in path.read_text().split())
        return before, saved
    except (OSError, ValueError):
        return 0, 0


class Restarts:
    def __init__(self, most, signals, say, peers=None, patience=600.0):
        """peers: a FirstHost or an OtherHost of a job on several. patience: seconds for the ranks of all hosts to end."""
        self.most, self.signals, self.say, self.peers, self.patience = most, signals, say, peers, patience
        self.done = 0  # restarts
        self.newest = None  # the newest step that any start began after or saved
        self.without_progress = 0  # starts in a row
        self.seconds = FIRST_SECONDS

    def again(self, code, why, progress_file, ran_seconds):
        """Whether to start again, now: after the back-off, and on all hosts. Says so in one line, or why not."""
        if self.most == 0:
            return False
        if code in (failures.DONE, failures.STOPPED_SAVED):
            self.end(code)
            return False
        try:
            if isinstance(self.peers, OtherHost):
                self.follow(code, why)
            else:
                self.lead(code, why, progress_file, ran_seconds)
        except Stopped as stopped:
            if isinstance(self.peers, FirstHost):
                self.peers.tell({"start": False, "why": str(stopped)})
            if stopped.signal_number:
                raise
            self.say(f"[launch] not started again: {stopped}")
            return False
        self.done += 1
        return True

    def end(self, code):
        """There is no further start: tells host 0, which may wait for this one."""
        if isinstance(self.peers, OtherHost):
            self.peers.report_end(code)

    def follow(self, code, why):
        answer = self.peers.ask(code, why, 2 * self.patience + MOST_SECONDS)
        self.say(f"[launch] {answer.get('line')}")

    def lead(self, code, why, progress_file, ran_seconds):
        if self.peers and code in failures.RETRIED:  # ranks that lost a peer do not know how it ended
            code, why = worst(code, why, self.peers.collect(self.patience))
        if code not in failures.RETRIED:
            raise Stopped(f"{why}, and {failures.describe(code)} is none after which another start helps (docs/exit_codes.md)")
        saved = self.judge_progress(progress_file)
        if self.done >= self.most:
            raise Stopped(f"it has been, {self.done} time{'s' * (self.done != 1)} (--max-restarts {self.most})")
        if ran_seconds >= LONG_RUN_SECONDS:
            self.seconds = FIRST_SECONDS
        left = self.most - self.done - 1
        line = (f"restart {self.done + 1} of at most {self.most} in {self.seconds:.0f} s: {why}; it resumes "
                f"{f'after step {saved}' if saved else 'from its beginning, for nothing is saved'}; {left} more {'is' if left == 1 else 'are'} left")
        self.say(f"[launch] {line}")
        if self.peers:
            self.peers.wait(self.seconds)
            self.peers.tell({"start": True, "line": line})
        else:
            number, _ = self.signals.wait(time.monotonic() + self.seconds)
            if number:
                raise stop_by(number)
        self.seconds = min(2 * self.seconds, MOST_SECONDS)

    def judge_progress(self, progress_file):
        """The newest step that is saved. Stopped where two starts in a row saved none that is newer."""
        before, saved = read_progress(progress_file)
        if self.newest is None:
            self.newest = before
        self.without_progress = 0 if saved > self.newest else self.without_progress + 1
        self.newest = max(self.newest, saved)
        if self.without_progress == 2:
            raise Stopped("this start and the one before it saved no new step" + (f" after step {self.newest}" if self.newest else ""))
        return saved


def worst(code, why, reports):
    """The code and the reason that count among host 0's and the others': one that is never retried, else one that is no lost peer."""
    known = [(code, why)] + [(report["code"], f"{report.get('why')} (host {node})") for node, report in sorted(reports.items())]
    for one in known:
        if one[0] not in failures.RETRIED and one[0] != failures.DONE:
            return one
    return next((one for one in known if one[0] not in (failures.COMMUNICATION, failures.DONE)), known[0])
