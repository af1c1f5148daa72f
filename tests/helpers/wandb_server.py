"""A stand-in for wandb's server on this machine: GraphQL, file streams and uploads.

It answers what `sweep` and `agent` of wandb 0.31 and the runs that they start ask,
draws the values of a sweep, and keeps what it was sent. A question that it does not
know gets an error of GraphQL, and is listed in `Server.unknown`.
"""

import contextlib
import gzip
import json
import math
import os
import random
import re
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

ENTITY = "someone"
SWEEP = "sweep123"


def run(name):
    """Return the record of a run that has sent nothing yet."""
    return types.SimpleNamespace(
        name=name,
        sweep=None,
        config={},
        tags=[],
        summary={},
        history=[],
        files={},
        exit_code=None,
        artifacts=[],
    )


def draw(parameter, source):
    """A value of a sweep's parameter, as wandb documents `value`, `values` and two of
    its distributions."""
    if "value" in parameter:
        return parameter["value"]
    if "values" in parameter:
        return source.choice(parameter["values"])
    low, high = parameter["min"], parameter["max"]
    kinds = {
        "uniform": lambda: source.uniform(low, high),
        "log_uniform_values": lambda: math.exp(
            source.uniform(math.log(low), math.log(high))
        ),
    }
    return kinds[parameter["distribution"]]()


class Server:
    """The state, and one method `on_NAME(variables)` for each operation of GraphQL."""

    def __init__(self, seed=0):
        self.url = ""
        self.sweep = {}  # the file that `wandb sweep` sent
        self.handed_out = {}  # run -> values
        self.runs = {}
        self.unknown = []
        self.keys = set()  # the Authorization of every request
        self.refuses = None  # status with which every request is refused
        self.texts = []  # bodies of all requests
        self.forgets = False  # takes the history, and keeps none of it
        self._source = random.Random(seed)
        self._lock = threading.Lock()

    def environment(self):
        """Variables under which wandb's programs talk to this server alone."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
        return clean | {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": "0" * 40,
            "WANDB_ERROR_REPORTING": "false",
        }

    def of(self, name):
        return self.runs.setdefault(name, run(name))

    # --- sweeps -----------------------------------------------------------------------

    def on_Viewer(self, _):  # noqa: N802
        teams = {"edges": []}
        known = {"entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}"}
        return {"viewer": {"id": "user", "teams": teams} | known}

    def on_GetDefaultEntity(self, _):  # noqa: N802
        return {"viewer": {"id": "user", "entity": ENTITY}}

    def on_ServerFeaturesQuery(self, _):  # noqa: N802
        return {"serverInfo": {"features": []}}

    def on_UpsertSweep(self, variables):  # noqa: N802
        self.sweep = yaml.safe_load(variables["config"])
        project = {
            "id": "project",
            "name": variables["projectName"],
            "entity": {"id": "entity", "name": ENTITY},
        }
        found = {"name": SWEEP, "project": project}
        return {"upsertSweep": {"sweep": found, "configValidationWarnings": []}}

    def on_CreateAgent(self, _):  # noqa: N802
        return {"createAgent": {"agent": {"id": "agent"}}}

    def on_Heartbeat(self, variables):  # noqa: N802
        commands = []
        if not json.loads(variables["runState"]):  # nothing runs
            values = {
                key: draw(parameter, self._source)
                for key, parameter in self.sweep["parameters"].items()
            }
            name = f"run{len(self.handed_out)}"
            self.handed_out[name] = values
            commands = [
                {
                    "type": "run",
                    "run_id": name,
                    "program": self.sweep.get("program"),
                    "args": {key: {"value": x} for key, x in values.items()},
                }
            ]
        answer = {"agent": {"id": "agent"}, "commands": json.dumps(commands)}
        return {"agentHeartbeat": answer}

    def on_SweepWithRuns(self, _):  # noqa: N802
        empty = ("description", "heartbeatAt", "updatedAt", "bestLoss", "controller")
        sweep = {
            "id": "sweep",
            "name": SWEEP,
            "method": self.sweep["method"],
            "state": "RUNNING",
            "config": yaml.safe_dump(self.sweep),
            "createdAt": "2026-01-01T00:00:00",
            "earlyStopJobRunning": False,
            "scheduler": None,
            "runs": {"edges": []},
        }
        return {"project": {"sweep": sweep | dict.fromkeys(empty)}}

    # --- runs -------------------------------------------------------------------------

    def on_RunResumeStatus(self, variables):  # noqa: N802
        entity = {"id": "entity", "name": ENTITY}
        found = {"id": "project", "name": variables["project"], "entity": entity}
        return {"model": found | {"bucket": None}}  # there is no such run yet

    def on_UpsertBucket(self, variables):  # noqa: N802
        found = self.of(variables["name"])
        found.sweep = variables["sweep"] or found.sweep
        found.tags = variables["tags"] or found.tags
        if variables["config"]:
            config = json.loads(variables["config"])
            found.config |= {k: x["value"] for k, x in config.items()}
        entity = {"id": "entity", "name": ENTITY}
        bucket = {
            "id": f"id-{found.name}",
            "name": found.name,
            "displayName": variables["displayName"] or found.name,
            "description": None,
            "config": variables["config"],
            "sweepName": found.sweep,
            "project": {"id": "p", "name": variables["project"], "entity": entity},
            "historyLineCount": len(found.history),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def kept(self, variables, **fields):
        """A run as the public API asks for it; None if there is none."""
        found = self.runs.get(variables["name"])
        return {"project": {"run": found and fields}}

    def on_Run(self, variables):  # noqa: N802
        found = self.of(variables["name"])
        empty = "commit createdAt heartbeatAt description notes jobType group"
        return self.kept(
            variables,
            **dict.fromkeys(empty.split()),
            projectId="1",
            user={"name": ENTITY, "username": ENTITY},
            id=f"id-{found.name}",
            tags=found.tags,
            name=found.name,
            displayName=found.name,
            sweepName=found.sweep,
            state="running" if found.exit_code is None else "finished",
            config="{}",
            readOnly=False,
            systemMetrics="{}",
            summaryMetrics=json.dumps(found.summary),
            historyLineCount=len(found.history),
            historyKeys={},
        )

    def on_RunHistoryKeys(self, variables):  # noqa: N802
        steps = [row["_step"] for row in self.of(variables["name"]).history]
        keys = {"lastStep": max(steps, default=-1)}
        return self.kept(variables, historyKeys=keys)

    def on_CreateRunFiles(self, variables):  # noqa: N802
        name = variables["run"]
        files = [
            {"name": x, "uploadUrl": f"{self.url}/upload/run/{name}/{x}"}
            for x in variables["files"]
        ]
        answer = {"runID": f"id-{name}", "uploadHeaders": [], "files": files}
        return {"createRunFiles": answer}

    def on_MarkRunFilesUploaded(self, _):  # noqa: N802
        return {"markRunFilesUploaded": {"success": True}}

    def stream(self, name, data):
        """Keep what a run's file stream sends: history, summary and the exit code."""
        found = self.of(name)
        if self.forgets:
            return
        for file, part in data.get("files", {}).items():
            lines = [json.loads(x) for x in part["content"] if file.startswith("wandb")]
            if file == "wandb-history.jsonl":
                found.history[part["offset"] :] = lines
            elif file == "wandb-summary.json":
                found.summary = lines[-1]
        if data.get("complete"):
            found.exit_code = data["exitcode"]

    # --- artifacts --------------------------------------------------------------------

    def on_ArtifactType(self, _):  # noqa: N802
        return {"project": {"artifact": None}}  # none of this name so far

    def on_FetchArtifactDigestAlgorithm(self, _):  # noqa: N802
        return {"project": {"artifactType": None}}

    def on_XXHashDigestsEnabled(self, _):  # noqa: N802
        return {"entity": {"xxhashDigestsEnabled": False}}

    def on_CreateArtifact(self, variables):  # noqa: N802
        asked = variables["input"]
        made = types.SimpleNamespace(asked=asked, files={}, committed=False)
        found = self.of(asked["runName"])
        found.artifacts.append(made)
        name = f"{found.name}:{len(found.artifacts) - 1}"
        sequence = {"latestArtifact": None}
        new = {"id": name, "state": "PENDING", "artifactSequence": sequence}
        return {"createArtifact": {"artifact": new}}

    def artifact(self, name):
        owner, place = name.split(":")
        return self.runs[owner].artifacts[int(place)]

    def manifest(self, name):
        url = f"{self.url}/upload/manifest/{name}/manifest"
        file = {"id": "file", "uploadUrl": url, "uploadHeaders": []}
        return {"artifactManifest": {"id": name, "file": file}}

    def on_CreateArtifactManifest(self, variables):  # noqa: N802
        return {"createArtifactManifest": self.manifest(variables["artifactID"])}

    def on_UpdateArtifactManifest(self, variables):  # noqa: N802
        name = variables["artifactManifestID"]
        return {"updateArtifactManifest": self.manifest(name)}

    def on_CreateArtifactFiles(self, variables):  # noqa: N802
        edges = []
        for file in variables["input"]["artifactFiles"]:
            name, path = file["artifactID"], file["name"]
            node = {
                "storagePath": path,
                "uploadUrl": f"{self.url}/upload/artifact/{name}/{path}",
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
                "artifact": {"id": name},
            }
            edges.append({"node": node})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def on_CommitArtifact(self, variables):  # noqa: N802
        made = self.artifact(variables["artifactID"])
        made.committed = True
        artifact = {"id": variables["artifactID"], "digest": "digest"}
        return {"commitArtifact": {"artifact": artifact}}

    def upload(self, kind, name, path, data):
        """Keep a file of a run or of an artifact."""
        if kind == "run":
            self.of(name).files[path] = data
        elif kind == "artifact":
            self.artifact(name).files[path] = data

    def answer(self, request):
        """The answer to a request of GraphQL."""
        query = request["query"]
        name = re.search(r"(?:query|mutation)\s+(\w+)", query)[1]
        method = getattr(self, f"on_{name}", None)
        with self._lock:
            if method is None:
                self.unknown.append(query)
                return {"errors": [{"message": f"no operation {name}"}]}
            return {"data": method(request.get("variables") or {})}


def handler(server):
    """A class that answers HTTP for `server`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def handle(self):  # a run that is killed ends its connections
            with contextlib.suppress(ConnectionError):
                super().handle()

        def body(self):
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            packed = self.headers.get("Content-Encoding") == "gzip"
            data = gzip.decompress(data) if packed else data
            server.keys.add(self.headers.get("Authorization"))
            server.texts.append(data)
            return data

        def reply(self, answer, status=200):
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self):
            data = self.body()
            if server.refuses is not None:
                return self.reply({}, server.refuses)
            if self.path == "/graphql":
                return self.reply(server.answer(json.loads(data)))
            if self.path.endswith("/file_stream"):
                server.stream(self.path.split("/")[-2], json.loads(data))
            return self.reply({})  # else telemetry

        def do_PUT(self):
            _, _, kind, name, path = self.path.split("/", 4)
            server.upload(kind, name, path, self.body())
            self.reply({})

        def do_GET(self):
            self.reply({})

    return Handler


@contextlib.contextmanager
def serve(seed=0):
    """A `Server` that listens on this machine while the context lasts."""
    server = Server(seed)
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler(server))
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@contextlib.contextmanager
def stranger():
    """The URL of a server that nobody named, and the requests that it got."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self):
            requests.append((self.command, self.path, dict(self.headers)))
            self.send_error(401)

    for word in ("GET", "POST", "PUT", "HEAD", "OPTIONS"):
        setattr(Handler, f"do_{word}", Handler.answer)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}", requests
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
