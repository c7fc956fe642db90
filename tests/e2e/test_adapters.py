"""Adapters: the official SDK picks them by name, they come and go while the server runs, and they last."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import openai

from server import BIN, ROOT, Server

BASE = os.path.join(ROOT, "tests/golden/models/hf-f32")
ADAPTERS = os.path.join(ROOT, "tests/golden/adapters")
INVALID = "invalid_request_error"


NAMES = ("an adapter's name must be 1 to 160 letters, digits, '.', '_', '-', ':' or '/', begin with a letter or digit, "
         "and have no part that is empty, '.' or '..'")


def path(name):
    return os.path.join(ADAPTERS, name)


def error(message, param=None, code=None):
    return {"error": {"message": message, "type": INVALID, "param": param, "code": code}}


def tokens_of(server, model, n=6):
    """What the model answers, and whose answer its fingerprint says it is."""
    status, answer = server.json(
        "POST",
        "/v1/completions",
        {"model": model, "prompt": [5, 6, 7], "max_tokens": n, "temperature": 0, "logprobs": 0,
         "ignore_eos": True, "return_tokens_as_token_ids": True},
    )
    assert status == 200, answer
    return answer["choices"][0]["logprobs"]["tokens"], answer["system_fingerprint"].partition("+")[2]


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(
            BASE, "--enable-lora", "--lora-modules", f"all={path('all')}", "--lora-modules", f"qv={path('qv')}",
            "--max-loras", "2", "--max-lora-rank", "16", "--vllm-metrics",
        )
        cls.addClassCleanup(cls.server.stop)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="x", max_retries=0)
        cls.addClassCleanup(cls.client.close)

    def load(self, **body):
        status, headers, data = self.server.request("POST", "/v1/load_lora_adapter", body)
        return status, data.decode() if headers["content-type"].startswith("text/plain") else json.loads(data)

    def unload(self, name):
        return self.server.request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def test_sdk(self):
        listed = {m.id: m for m in self.client.models.list()}
        self.assertEqual(listed["hf-f32"].root, "hf-f32")
        self.assertIsNone(listed["hf-f32"].parent)
        for name in ("all", "qv"):
            self.assertEqual((listed[name].root, listed[name].parent), (path(name), "hf-f32"))
            self.assertEqual(self.client.models.retrieve(name), listed[name])
        answers = {}
        for name in ("hf-f32", "all", "qv"):
            a = self.client.completions.create(model=name, prompt=[5, 6, 7], max_tokens=8, temperature=0)
            self.assertEqual(a.model, name)
            self.assertEqual("+" in a.system_fingerprint, name != "hf-f32")
            answers[name] = a.choices[0].text
        self.assertEqual(len(set(answers.values())), 3)
        parts = self.client.completions.create(
            model="qv", prompt=[5, 6, 7], max_tokens=8, temperature=0, stream=True)
        text = ""
        for part in parts:
            self.assertEqual(part.model, "qv")
            self.assertTrue(part.system_fingerprint.endswith(f"+qv@{listed['qv'].version}"))
            text += part.choices[0].text
        self.assertEqual(text, answers["qv"])
        with self.assertRaises(openai.NotFoundError) as e:
            self.client.completions.create(model="nothing", prompt="x")
        self.assertEqual((e.exception.code, e.exception.param), ("model_not_found", "model"))

    def test_load_and_unload(self):
        self.assertEqual(
            self.load(lora_name="new", lora_path=path("rslora")),
            (200, "Success: LoRA adapter 'new' added successfully."),
        )
        self.assertIn("new", [m.id for m in self.client.models.list()])
        first, version = tokens_of(self.server, "new")
        self.assertEqual(
            self.load(lora_name="new", lora_path=path("rslora")),
            (400, error("The lora adapter 'new' has already been loaded. If you want to load the adapter in place, "
                        "set 'load_inplace' to True.", "lora_name")),
        )
        self.assertEqual(self.load(lora_name="new", lora_path=path("qv"), load_inplace=True)[0], 200)
        second, other = tokens_of(self.server, "new")
        self.assertNotEqual(version, other)
        self.assertEqual(second, tokens_of(self.server, "qv")[0])
        self.assertEqual(tokens_of(self.server, version), (first, version))  # name@number
        status, _, data = self.unload("new")
        self.assertEqual((status, data), (200, b"Success: LoRA adapter 'new' removed successfully."))
        self.assertNotIn("new", [m.id for m in self.client.models.list()])
        for model in ("new", version, other):
            status, body = self.server.json("POST", "/v1/completions", {"model": model, "prompt": "x"})
            self.assertEqual(
                (status, body), (404, error(
                    f"The model `{model}` does not exist; served here: `hf-f32` (/v1/models lists adapters, too)", "model",
                    "model_not_found")))
        status, _, data = self.unload("new")
        self.assertEqual(
            (status, json.loads(data)), (404, error("The lora adapter 'new' cannot be found.", "lora_name")))

    def test_what_is_refused(self):
        missing = "Both 'lora_name' and 'lora_path' must be provided."
        tensor = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
        for body, expected in (
            ({"lora_name": "x"}, (400, error(missing, "lora_path"))),
            ({"lora_path": "x"}, (400, error(missing, "lora_name"))),
            ({"lora_name": 5, "lora_path": "x"}, (400, error("lora_name must be a string, not a number", "lora_name"))),
            ({"lora_name": "x", "lora_path": "/nothing"},
             (404, error("No adapter found for /nothing: No such file or directory", "lora_path"))),
            ({"lora_name": "hf-f32", "lora_path": path("qv")},
             (400, error("`hf-f32` is the name of the base model; an adapter needs another", "lora_name"))),
            ({"lora_name": "x@1", "lora_path": path("qv")},
             (400, error(NAMES, "lora_name"))),
            ({"lora_name": "../x", "lora_path": path("qv")}, (400, error(NAMES, "lora_name"))),
            ({"lora_name": "a//b", "lora_path": path("qv")}, (400, error(NAMES, "lora_name"))),
            ({"lora_name": "x", "lora_path": path("quantised")},
             (400, error(f"tensor {tensor}: the shape is [4, 128], expected [4, 48]", "lora_path"))),
            ({"lora_name": "x", "lora_path": path("patterns")},
             (400, error("adapter_config.json: rank_pattern: rank 17 is over the limit of 16", "lora_path"))),
            ({"lora_name": "x", "lora_path": os.path.dirname(path("qv"))},
             (404, error("adapter_config.json is missing; a PEFT adapter is a folder with adapter_config.json and "
                         "adapter_model.safetensors", "lora_path"))),

        ):
            with self.subTest(body=body):
                self.assertEqual(self.load(**body), expected)
        self.assertEqual(sorted(m.id for m in self.client.models.list()), ["all", "hf-f32", "qv"])

    def test_names_with_slashes(self):
        """As hubs have them: in a body, in a path, in the SDK."""
        name = "Org/some.Name-7B"
        self.assertEqual(self.load(lora_name=name, lora_path=path("rslora"))[0], 200)
        self.assertEqual(self.client.models.retrieve(name).id, name)
        self.assertEqual(self.client.completions.create(model=name, prompt=[5], max_tokens=1).model, name)
        admin = "/admin/v1/adapters/"
        status, listed = self.server.json("GET", admin + name)
        self.assertEqual((status, [v["name"] for v in listed["data"]]), (200, [name]))
        self.assertEqual(self.server.json("GET", admin + name.replace("/", "%2F"))[1], listed)
        version = listed["data"][0]["version"]
        for action, body, expected in (("promote", {"version": version}, 200), ("rollback", {}, 400),
                                       ("nothing", {}, 405), ("retire", {}, 200)):
            status, body = self.server.json("POST", admin + name + "/" + action, body)
            self.assertEqual(status, expected, (action, body))
        self.assertEqual(self.server.json("GET", admin + "nothing/at/all")[0], 404)

    def test_admin_errors_name_admin_fields(self):
        for route, body, status, param in (
            ("", {"name": "../x", "path": path("qv")}, 400, "name"),
            ("", {"name": "x", "path": "/nothing"}, 404, "path"),
            ("", {"name": "x", "path": path("quantised")}, 400, "path"),
            ("", {"name": "x"}, 400, "path"),
            ("", {"path": path("qv")}, 400, "name"),
            ("/aliases", {"alias": "a b", "target": "qv"}, 400, "alias"),
            ("/aliases", {"alias": "x", "target": "nothing"}, 404, "target"),
            ("/aliases", {"alias": "nothing"}, 404, "alias"),
            ("/qv/promote", {}, 400, "version"),
            ("/qv/promote", {"version": 4711}, 404, "version"),
            ("/qv/promote", {"version": 0}, 400, "version"),
        ):
            with self.subTest(route=route, body=body):
                got, answer = self.server.json("POST", "/admin/v1/adapters" + route, body)
                self.assertEqual((got, answer["error"]["param"]), (status, param), answer)

    def test_more_adapters_than_slots(self):
        names = ["all", "qv", "a", "b", "c"]
        for name in names[2:]:
            self.assertEqual(self.load(lora_name=name, lora_path=path("rslora"))[0], 200)
        expected = {name: tokens_of(self.server, name) for name in names}
        for _ in range(3):
            for name in names:
                self.assertEqual(tokens_of(self.server, name), expected[name])
        self.assertEqual(expected["a"][0], expected["c"][0])
        self.assertGreater(self.server.metric("graft_adapter_evictions_total"), 3)
        text = self.server.request("GET", "/metrics")[2].decode()
        self.assertIn('vllm:lora_requests_info{max_lora="2",waiting_lora_adapters="",running_lora_adapters=""}', text)
        for name in names[2:]:
            self.assertEqual(self.unload(name)[0], 200)


class Lasting(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, *options):
        server = Server(BASE, "--enable-lora", "--data-dir", os.path.join(self.folder, "data"), *options)
        self.addCleanup(server.stop)
        return server

    def post(self, server, route, body, expected=200):
        status, _, data = server.request("POST", route, body)
        self.assertEqual(status, expected, data)
        return data

    # What an alias stands for may be read anew at each start, or be missing at one.
    def test_an_alias_of_the_command_line(self):
        modules = ("--lora-modules", f"qv={path('qv')}")
        server = self.start(*modules)
        self.post(server, "/admin/v1/adapters/aliases", {"alias": "prod", "target": "qv"})
        before, version = tokens_of(server, "prod")
        refused = self.post(server, "/admin/v1/adapters/aliases", {"alias": "prod", "target": version}, 400)
        self.assertIn(b"its number ends with this process", refused)
        for options, status in (((), 404), (modules, 200)):
            server.stop(signal.SIGKILL)
            server = self.start(*options)
            self.assertEqual(server.json("GET", "/admin/v1/adapters")[1]["aliases"],
                             [{"alias": "prod", "target": "qv", "former": None, "served": status == 200}])
            got, answer = server.json("GET", "/v1/models/prod")
            self.assertEqual(got, status)
            if status == 404:
                self.assertEqual(answer, error("alias `prod` stands for `qv`, which is not served any more",
                                               "model", "model_not_found"))
            self.post(server, "/admin/v1/adapters", {"name": "other", "path": path("all")})  # saves
        self.assertEqual(tokens_of(server, "prod")[0], before)

    def test_an_alias_goes_back(self):
        server = self.start()
        admin = "/admin/v1/adapters"
        for name in ("all", "qv"):
            self.post(server, admin, {"name": name, "path": path(name)})
            self.post(server, admin + "/aliases", {"alias": "prod", "target": name})
        answers = {name: tokens_of(server, name)[0] for name in ("all", "qv")}
        self.assertEqual(tokens_of(server, "prod")[0], answers["qv"])
        listed = json.loads(self.post(server, admin + "/prod/rollback", None))
        self.assertEqual(listed["aliases"], [{"alias": "prod", "target": "all", "former": "qv", "served": True}])
        self.assertEqual(tokens_of(server, "prod")[0], answers["all"])
        server.stop(signal.SIGKILL)
        server = self.start()
        self.assertEqual(server.json("GET", admin)[1]["aliases"], listed["aliases"])
        self.assertEqual(tokens_of(server, "prod")[0], answers["all"])
        self.assertEqual(json.loads(self.post(server, admin + "/qv/retire", {}))["warnings"], [])
        refused = self.post(server, admin + "/prod/rollback", None, 400)
        self.assertIn(b"`qv`, which alias `prod` stood for before, is not served any more", refused)
        says = "alias `prod` stands for `all`, which is not served any more"
        self.assertEqual(json.loads(self.post(server, admin + "/all/retire", {}))["warnings"], [says])
        status, answer = server.json("POST", "/v1/completions", {"model": "prod", "prompt": [5], "max_tokens": 1})
        self.assertEqual((status, answer["error"]["message"]), (404, says))
        self.assertEqual(server.json("GET", admin)[1]["aliases"],
                         [{"alias": "prod", "target": "all", "former": "qv", "served": False}])

    def test_a_killed_process(self):
        server = self.start()
        source = os.path.join(self.folder, "source")
        for name in ("all", "qv", "rslora"):
            shutil.rmtree(source, ignore_errors=True)
            shutil.copytree(path(name), source)
            self.post(server, "/v1/load_lora_adapter",
                      {"lora_name": "a", "lora_path": source, "load_inplace": name != "all"})
        self.post(server, "/v1/load_lora_adapter", {"lora_name": "gone", "lora_path": source})
        self.post(server, "/v1/unload_lora_adapter", {"lora_name": "gone"})
        self.post(server, "/admin/v1/adapters/aliases", {"alias": "prod", "target": "a"})
        before = tokens_of(server, "prod")
        self.assertEqual(before[1], "a@3")
        server.stop(signal.SIGKILL)
        shutil.rmtree(source)  # the data folder has a copy
        server = self.start()
        self.assertEqual(tokens_of(server, "prod"), before)
        listed = server.json("GET", "/admin/v1/adapters")[1]
        self.assertEqual([(x["version"], x["status"], x["former"]) for x in listed["data"]],
                         [(2, "ready", True), (3, "active", False)])
        self.assertEqual(listed["aliases"], [{"alias": "prod", "target": "a", "former": None, "served": True}])
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "data/adapters"))), ["state.json", "v2", "v3"])
        for folder in ("v2", "v3"):
            r = subprocess.run([BIN, "verify", os.path.join(self.folder, "data/adapters", folder)], capture_output=True)
            self.assertEqual(r.returncode, 0, r.stdout)
        self.post(server, "/admin/v1/adapters/a/rollback", None)
        self.assertEqual(tokens_of(server, "prod")[1], "a@2")
        self.post(server, "/admin/v1/adapters", {"name": "a", "path": path("all"), "promote": False})
        server.stop(signal.SIGKILL)
        server = self.start()
        self.assertEqual(tokens_of(server, "a")[1], "a@2")
        self.assertEqual([(x["version"], x["status"]) for x in server.json("GET", "/admin/v1/adapters/a")[1]["data"]][:2],
                         [(2, "active"), (3, "rolled_back")])
        versions = [x["version"] for x in server.json("GET", "/admin/v1/adapters/a")[1]["data"]]
        self.assertEqual(versions[:2], [2, 3])
        self.assertGreater(versions[2], 4)  # 4 was another's
        self.post(server, "/admin/v1/adapters/a/promote", {"version": versions[2]})
        self.assertEqual(tokens_of(server, "a")[1], f"a@{versions[2]}")
        self.post(server, "/admin/v1/adapters/a/retire", {"version": versions[2]})
        self.post(server, "/admin/v1/adapters/a/promote", {"version": versions[2]}, 400)
        self.post(server, "/admin/v1/adapters/b/promote", {"version": 2}, 404)

    def test_content_that_has_changed_is_not_served(self):
        server = self.start()
        self.post(server, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": path("qv")})
        server.stop()
        kept = os.path.join(self.folder, "data/adapters/v1/adapter_model.safetensors")
        with open(kept, "r+b") as f:
            f.seek(-3, os.SEEK_END)
            f.write(b"\x40")
        server = Server(BASE, "--enable-lora", "--data-dir", os.path.join(self.folder, "data"), wait=False)
        self.assertEqual(server.process.wait(30), 1)
        server.stop()
        self.assertIn("adapter a@1 (v1): its content is not what it was", "\n".join(server.log))


class Access(unittest.TestCase):
    def test_keys_and_folders(self):
        folder = tempfile.mkdtemp(prefix="graft-e2e-")
        self.addCleanup(shutil.rmtree, folder)
        os.mkdir(os.path.join(folder, "ok"))
        shutil.copytree(path("qv"), os.path.join(folder, "ok/qv"))
        shutil.copytree(path("qv"), os.path.join(folder, "ok2"))
        os.symlink(os.path.join(folder, "ok2"), os.path.join(folder, "ok/link"))
        with open(os.path.join(folder, "keys"), "w") as f:
            f.write("user a\ntrain a train\nroot a admin\n")
        server = Server(BASE, "--enable-lora", "--api-key-file", os.path.join(folder, "keys"),
                        "--lora-dir", os.path.join(folder, "ok"))
        self.addCleanup(server.stop)

        def load(key, where):
            return server.request("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": where},
                                  {"Authorization": "Bearer " + key})[0]

        inside = os.path.join(folder, "ok/qv")
        self.assertEqual([load(k, inside) for k in ("nobody", "user", "train")], [401, 403, 403])
        for outside in ("ok2", "ok/link", "ok/../ok2", "nothing"):
            self.assertEqual(load("root", os.path.join(folder, outside)), 404, outside)
        self.assertEqual(load("root", inside), 200)

    def test_not_enabled(self):
        with Server(BASE) as server:
            status, body = server.json("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path("qv")})
            self.assertEqual((status, body), (400, error("this server serves no adapters; start it with --enable-lora")))
        server = Server(BASE, "--lora-modules", f"qv={path('qv')}", wait=False)
        self.assertEqual(server.process.wait(30), 1)
        server.stop()
        self.assertIn("graft serve: --lora-modules and --lora-dir need --enable-lora", server.log)
        server = Server(BASE, "--enable-lora", "--lora-modules", "x=/nothing", wait=False)
        self.assertEqual(server.process.wait(30), 1)
        server.stop()
        self.assertIn("--lora-modules x", "\n".join(server.log))


if __name__ == "__main__":
    unittest.main()
