"""A server on loopback that answers as much of W&B's interface as a run needs: what it was sent is in `runs`. Standard library only."""
import gzip
import http.server
import json
import re
import sys
import threading


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs = {}  # id: {"lines": {offset: row}, "exits": [code], "starts": n, "config": {}, "summary": {}, "alerts": [title]}
        self.unknown = []  # operations that it has not answered with data
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that was killed
            super().handle_error(request, client_address)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def run(self, name):
        return self.runs.setdefault(name, {"lines": {}, "exits": [], "starts": 0, "config": {}, "summary": {}, "alerts": [], "asked": {}})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.answer({})

    def do_GET(self):
        self.answer({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        stream = re.fullmatch(r"/files/([^/]*)/([^/]*)/([^/]*)/file_stream", self.path)
        if not stream and self.path != "/graphql":  # telemetry
            return self.answer({})
        asked = json.loads(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
        if stream:
            self.add_lines(self.server.run(stream[3]), asked)
            return self.answer({"exitcode": None, "limits": {}})
        return self.answer({"data": self.data(asked["query"], asked.get("variables") or {})})

    def add_lines(self, run, asked):
        for name, chunk in (asked.get("files") or {}).items():
            for at, line in enumerate(chunk["content"], chunk["offset"]):
                if name == "wandb-history.jsonl":
                    run["lines"][at] = json.loads(line)
                elif name == "wandb-summary.json":
                    run["summary"].update(json.loads(line))
        if asked.get("complete"):
            run["exits"].append(asked.get("exitcode"))

    def data(self, query, variables):
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)[1]
        project = {"id": "P", "name": variables.get("project") or "p", "entity": {"id": "E", "name": "team"}}
        if operation == "UpsertBucket":
            run = self.server.run(variables["name"])
            run["config"].update(json.loads(variables["config"] or "{}"))
            run["asked"].update({key: value for key, value in variables.items() if value is not None and key != "config"})
            run["starts"] += 1
            return {"upsertBucket": {"bucket": self.bucket(variables["name"], project), "inserted": run["starts"] == 1}}
        if operation == "RunResumeStatus":
            known = variables["name"] in self.server.runs
            return {"model": {"name": project["name"], "entity": project["entity"], "bucket": self.bucket(variables["name"], project) if known else None}}
        if operation == "Viewer":
            return {"viewer": {"id": "U", "entity": "team", "username": "user", "email": "", "flags": "{}", "teams": {"edges": []}}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "NotifyScriptableRunAlert":
            self.server.run(variables["runName"])["alerts"].append(variables["title"])
            return {"notifyScriptableRunAlert": {"success": True}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.server.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}
        self.server.unknown.append(operation)
        return {}

    def bucket(self, name, project):
        run = self.server.run(name)
        tail = [json.dumps(run["lines"][max(run["lines"])])] if run["lines"] else []
        return {"id": f"B{name}", "name": name, "displayName": name, "description": None, "sweepName": None, "project": project,
                "config": json.dumps(run["config"]), "summaryMetrics": json.dumps(run["summary"]), "historyLineCount": len(run["lines"]),
                "eventsLineCount": 0, "logLineCount": 0, "historyTail": json.dumps(tail), "eventsTail": "[]", "tags": [], "notes": None,
                "wandbConfig": json.dumps({"t": {"value": 1}})}
