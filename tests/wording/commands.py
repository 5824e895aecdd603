"""Command lines that are wrong, by the module of the command: a new one is a line here and `--snapshot-update`.

They are run one after the other in a folder with the files of FILES, and a state folder with the jobs of `prepared`.
A line may begin with a variable of its environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.report.recorded_jobs import BUDGET, faulty_job, half_way, one_job, pytorch_job, steady_job
from tests.report.test_programs import trained

JOB = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: new}
spec:
  model: {file: model.py}
  data: {format: digits8x8}
  target: {accuracy: 0.9}
  budget: {amount: 1, currency: USD}
  workers: {min: 1, max: 2}
"""
BOTH = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: both}
spec:
  program: {command: [true], metrics: {"9": x}}
  model: {file: x.py}
  optimizer: {learningRate: 0.1}
  servers: {min: 1, max: 2}
  workers: {min: 1, max: 2}
  resources: {scheduler: {cpu: 1, memory: 1Gi}}
  target: {metric: x}
  budget: {unlimited: true}
"""
FILES = {
    "both.yaml": BOTH,
    "both-ways.yaml": BOTH.replace('[true], metrics: {"9": x}', "[x]").replace("metric: x", "metric: x, value: 3"),
    "model.py": "",
    "before.py": (Path(__file__).parents[2] / "examples/pytorch/digits/before.py").read_text() + "\nopen('ran', 'w')\n",
    "program.yaml": JOB.replace("model.py", "before.py"),
    "train.py": "print(1)\n",
    "job.yaml": JOB,
    "search.yaml": """
apiVersion: coach.dev/v1alpha1
kind: TrainingSearch
metadata: {name: rates}
spec:
  parameters: {seed: "1,2", batchSize: "8,8"}
  budget: {amount: 1, currency: USD}
  template: {model: {file: model.py}, data: {format: digits8x8}, maxEpochs: 3}
""",
    "two.yaml": f"{JOB}---\n{JOB.replace('new', 'newer')}",
    "wrong.yaml": JOB.replace("0.9", "90").replace("model.py", "no.py"),
    "large.yaml": f'{JOB}  resources: {{worker: {{cpu: "64", memory: 1Gi}}}}\n',
    "usual.yaml": "prizes: flat\n",
    "notes.txt": "not: [yaml\n",
    "nodes.yaml": "nodes: [{name: a, cpu: 2, memory: 4Gi}, {name: a, cpu: 2, memory: 4Gi}]\n",
    "odd-nodes.yaml": "nodes: [{name: a, cpu: many, memory: 4Gi}]\n",
    "offer-nodes.yaml": "nodes: [{name: a, cpu: 2, memory: 4Gi, offer: mine/none}]\n",
    "euro-nodes.yaml": "nodes: [{name: a, cpu: 2, memory: 4Gi, offer: mine/euro}]\n",
    "gpu-nodes.yaml": "nodes: [{name: a, cpu: 2, memory: 4Gi, gpu: 64}]\n",
    "long-nodes.yaml": "#" * 2**22,
    "trace.csv": "job,at\n",
    "jobs.csv": "job,arrival,work,cpu,memory\na,0,60,1,1\n",
    "speeds.csv": "model,workers,servers,speed\nx,1,1,fast\n",
    "slow.csv": "model,servers,workers,worker_speed\nx,1,1,fast\n",
    "half.csv": "model,servers,workers,worker_speed\nx,1,1.5,2\n",
    "long.csv": f"model,servers,workers,worker_speed\nx,1,1,{'1' * (2**24 + 1)}\n",
    "short.token": "abc\n",
    "open.token": "a" * 40,
    "catalogs/mine/vms.csv": """\
InstanceType,vCPUs,MemoryGiB,Price,SpotPrice,Region,Currency,AcceleratorName,AcceleratorCount
big,8,16,1,,north,USD,,
euro,8,16,1,,north,EUR,,
both,8,16,1,,north,USD,,
both,8,16,1,,south,EUR,,
half,8,16,1,,north,USD,H100,0.5
""",
    "no-columns/mine/vms.csv": "name,price\nbig,1\n",
    "no-text/mine/vms.csv": "InstanceType,vCPUs,MemoryGiB,Price\nb\udcffg,8,16,1\n",
    "no-numbers/mine/vms.csv": "InstanceType,vCPUs,MemoryGiB,Price\nbig,8,16,dear\n",
    "no-currency/mine/vms.csv": "InstanceType,vCPUs,MemoryGiB,Price,Currency\nbig,8,16,1,euro\n",
    **{
        f"offer-{offer.replace(':', '-')}.yaml": f"{JOB}  prices: {'mine/' * (offer != 'dear')}{offer}\n"
        for offer in ("dear", "bigg", "big@west", "big:spot", "big:often", "both", "half")
    },
    "kubeconfig": """\
apiVersion: v1
kind: Config
current-context: dev
contexts: [{name: dev, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
""",
}


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """The files and the jobs; meanwhile a `coach run` has the job torch, and another one the state folder `busy`."""
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8", errors="surrogateescape")
    Path("empty").mkdir()
    Path("short.token").chmod(0o600)
    Path("open.token").chmod(0o644)
    home = StateDirectory.default()
    ended = [steady_job().history, faulty_job().history, one_job("limited", maxEpochs=3).history, trained()[1]]
    fresh = World.of(nodes(1, 4.0))
    fresh.submit(spec("fresh", budget=BUDGET))
    for number, records in enumerate([*ended, half_way().history, fresh.history], 1):
        journal = Journal.write(home.journal(number))
        journal.append(records)
        journal.close()
    with contextlib.closing(Journal.write(home.journal(len(ended) + 3))) as held:
        held.append(pytorch_job(8).history)
        with contextlib.closing(Journal.write(StateDirectory(Path("busy")).journal(1))):
            yield


WRONG = {
    "main": """
        coach frobnicate
        coach --wrong
        coach list
        coach status
        coach stop digits
        coach delete digits
        coach train job.yaml
    """,
    "operations": """
        coach --context
        coach --namespace
        coach --context dev
        coach --context dev serve
        coach --context kind ps
        coach --context dev ps
        coach --context dev submit
        coach --context dev submit --policy coach
        coach --context dev submit job.yaml --policy coach
        coach --context dev plan job.yaml --nodes 2x2
        coach --context dev submit wrong.yaml
        coach --context dev suspend
        coach --context dev suspend --now digits
        coach --context dev search
        coach --context dev search none.yaml
        coach --context dev model
        KUBECONFIG=none coach --context dev ps
        KUBECONFIG=notes.txt coach --context dev ps
    """,
    "simulate": """
        coach simulate
        coach simulate job.yaml --policy ,
        coach simulate job.yaml --trace trace.csv
        coach simulate wrong.yaml
        coach simulate none.yaml
        coach simulate job.yaml --wrong
        coach simulate job.yaml --policy best
        coach simulate job.yaml --policy static:9x9
        coach simulate job.yaml --policy static:9x9 --fidelity trace --processes 1
        coach simulate job.yaml --policy coach,tf-operator
        coach simulate job.yaml --nodes 0x3
        coach simulate job.yaml --nodes 3x0
        coach simulate job.yaml --nodes 100000x1
        coach simulate job.yaml --nodes many
        coach simulate job.yaml --nodes gpu=+cpu=10x64
        coach simulate job.yaml --speeds vgg
        coach simulate job.yaml --speeds none.csv:vgg
        coach simulate job.yaml --speeds speeds.csv:x
        coach simulate job.yaml --speeds slow.csv:x
        coach simulate job.yaml --speeds half.csv:x
        coach simulate job.yaml --speeds long.csv:x
        coach simulate job.yaml --arrivals often
        coach simulate job.yaml --placement kube
        coach simulate job.yaml --placement ,
        coach simulate job.yaml --fidelity exact
        coach simulate job.yaml --rescale never
        coach simulate --trace trace.csv --rescale elastic
        coach simulate job.yaml --figure one.gif
        coach simulate job.yaml --jobs jobs.txt
        coach simulate job.yaml --timeline none/timeline.csv
        coach simulate job.yaml --home home
        coach simulate job.yaml --home new --fidelity trace
        coach simulate job.yaml --seeds 0
        coach simulate --trace none.csv --policy fifo
        coach simulate --trace slurm:trace.csv --policy fifo
        coach simulate --trace trace.csv --policy fifo
        coach simulate --trace jobs.csv --policy fifo --nodes trace
        coach simulate --trace trace.csv --policy fifo --placement default
        coach simulate --trace trace.csv --policy fifo --fidelity system
        coach simulate --trace trace.csv --policy fifo --arrivals poisson:60 --epoch-seconds 3
        coach simulate --journal none.db
        coach simulate --journal none.db --assume
        coach simulate --journal empty
    """,
    "jobs.run": """
        coach run
        coach run --wrong
        coach run job.yaml -o xml
        coach run none.yaml
        coach run wrong.yaml
        coach run notes.txt
        coach run train.py
        coach run python train.py
        coach run job.yaml -- python train.py
        coach run job.yaml --budget 1USD
        coach run job.yaml --budget 1USD --dry-run
        coach run job.yaml --set seed
        coach run job.yaml --set seed.x=3 --set seeed=1
        coach run job.yaml --set workers.min.x=3
        coach run --set workers.max=many --budget 5USD -- python train.py
        COACH_DEFAULTS=usual.yaml coach run job.yaml --set seed=x
        coach run --
        coach run -- python train.py
        coach run --budget 5 -- python train.py
        coach run --budget 0USD -- python train.py
        coach run --budget 5EUR -- python train.py
        coach run --budget 5USD --target 0.3 -- python train.py
        coach run --budget 5USD --target loss=low -- python train.py
        coach run --budget 5USD --target z=3 -- python train.py
        coach run --budget 5USD --metric x -- python train.py
        coach run --budget 5USD --target loss=3 --metric a( -- python train.py
        coach run --budget 5USD --target loss=3 --metric a -- python train.py
        coach run --budget 5USD --workers 0 -- python train.py
        coach run --budget 5USD --workers 3-1 -- python train.py
        coach run --budget 5USD --workers two -- python train.py
        coach run --budget 5USD --workers 1-3 -- python train.py
        coach run --budget 5USD --memory lots -- python train.py
        coach run --budget 5USD --gpus -1 -- python train.py
        coach run --budget 5USD --time-limit 2h -- python train.py
        coach run --budget 5USD --name 'No Name' -- python train.py
        coach run --budget 5USD --image x -- python train.py
        coach run job.yaml --policy dynamic
        coach run job.yaml --policy static:3x1
        coach run job.yaml --policy coach:dearest
        coach run job.yaml --nodes many
        coach run job.yaml --nodes 2000x1
        coach run job.yaml --nodes nodes.yaml
        coach run job.yaml --nodes odd-nodes.yaml
        coach run job.yaml --nodes notes.txt
        coach run job.yaml --nodes long-nodes.yaml
        coach run job.yaml --nodes gpu-nodes.yaml
        coach run --budget 30min -- python train.py
        coach run --budget 20gpuh -- python train.py
        coach run --budget 5USD --gpus 1 -- python train.py
        COACH_CATALOGS=catalogs coach run job.yaml --nodes offer-nodes.yaml
        COACH_CATALOGS=catalogs coach run job.yaml --nodes euro-nodes.yaml
        coach run job.yaml --placement nearest
        coach run job.yaml --placement default --policy specon
        coach run job.yaml --placement thesis:deadlock_timeout=9
        coach run job.yaml --placement default:backoff=10 --platform kubernetes
        coach run job.yaml --platform slurm
        coach run job.yaml --platform slurm --nodes 3x2
        coach run --budget 1USD --slurm "--qos='x" -- python train.py
        coach run --budget 1USD --slurm "-p gpu --nodes=2" -- python train.py
        coach run --budget 1USD --slurm "--gres=gpu:2" -- python train.py
        coach run --budget 1USD --slurm "gpu" -- python train.py
        coach run job.yaml --platform kubernetes --nodes 3x2
        coach run job.yaml --platform kubernetes --context kind
        coach run job.yaml --context dev
        coach run job.yaml --python none
        coach --context dev run job.yaml
        coach --context dev run --budget 1USD -- python train.py
        coach --context dev run --nodes 3x2 --budget 1USD --image x -- python train.py
        coach --context dev run --budget 1USD --image x -- python train.py
    """,
    "jobs.init": """
        coach init
        coach init none.py --file new.yaml
        coach init --wrong
    """,
    "jobs.search": """
        coach search
        coach search none.yaml --set seed=1,2 --budget 1USD
        coach search job.yaml --set seed=1,2
        coach search two.yaml --set seed=1,2 --budget 1USD
        coach search job.yaml --set seed --budget 1USD
        coach search job.yaml --set seeed=1,2 --budget 1USD
        coach search job.yaml --budget 1USD
        coach search job.yaml --set seed=1,2 --set seed=3,4 --budget 1USD
        coach search job.yaml --set seed=1,1 --budget 1USD
        coach search job.yaml --set seed=1,,2 --budget 1USD
        coach search job.yaml --set seed=randint(8,1) --budget 1USD
        coach search job.yaml --set prices.name=1,2 --budget 1USD
        coach search --set lr=1,2 --budget 1USD --target loss=0.3 -- python train.py
        coach search job.yaml --set seed=1,2 --budget 1USD --objective loss
        coach search job.yaml --set seed=1,2 --budget 1USD --pruner best
        coach search job.yaml --set seed=1,2 --budget 1USD --pruner hyperband
        coach search job.yaml --set seed=1,2 --budget 1USD --sampler best
        coach search job.yaml --set optimizer.learningRate=uniform(0.1,1) --budget 1USD --sampler grid
        coach search --set lr=1,2 --budget 1USD -- python train.py {lr}
        coach search --set lr=1,2 --budget 1USD --objective xyz -- python train.py {lr}
        coach search job.yaml --set seed=1,2 --set 'batchSize=8,16 if seed=3' --budget 1USD
        coach search job.yaml --set seed=1,2 --budget 1USD --deadline soon
        coach search search.yaml
        coach search search.yaml --set seed=1,2
        coach search --stop nobody
        coach search --show nobody
        coach search --resume nobody
        coach search --again steady
        coach search --again nobody --budget 1USD
        coach search --show a --resume b
        coach search job.yaml --plot figures
    """,
    "jobs.submit": """
        coach submit
        coach submit none.yaml
        coach submit wrong.yaml
        coach submit job.yaml --policy dynamic
        coach submit job.yaml
    """,
    "jobs.suspend": """
        coach suspend
        COACH_HOME=empty coach suspend digits
        coach suspend digist
        coach suspend steady
        coach suspend digits
        coach suspend torch
    """,
    "jobs.resume": """
        coach resume
        COACH_HOME=empty coach resume digits
        coach resume digist
        coach resume steady
        coach resume limited
        coach resume faulty
        coach resume faulty --add-budget -1
        coach resume torch
        coach resume digits --nodes many
    """,
    "jobs.cancel": """
        coach cancel
        COACH_HOME=empty coach cancel digits
        coach cancel digist
        coach cancel steady
        coach cancel torch
    """,
    "jobs.ps": """
        coach ps --wrong
        coach ps -o xml
        coach ps steady
    """,
    "jobs.show": """
        coach show
        COACH_HOME=empty coach show digits
        coach show digist
        coach show xyzzy
    """,
    "jobs.why": """
        coach why
        COACH_HOME=empty coach why digits
        coach why digist
    """,
    "jobs.events": """
        coach events
        COACH_HOME=empty coach events digits
        coach events digist
    """,
    "jobs.logs": """
        coach logs
        COACH_HOME=empty coach logs digits
        coach logs digist
        coach logs steady worker-7
    """,
    "jobs.plan": """
        coach plan
        coach plan none.yaml
        coach plan wrong.yaml
        coach plan digits --set batchSize=64
        coach plan job.yaml --nodes many
        coach plan job.yaml --figure plan.png
        coach plan job.yaml --probe 1
        coach plan job.yaml --deadline someday
        coach plan job.yaml --deadline 2000-01-01
        coach plan job.yaml --deadline 0s
        coach plan job.yaml --deadline 8h --budget 1
        coach plan job.yaml --budget 0
        coach plan job.yaml --budget 1,x
        coach plan job.yaml --budget 1,2EUR
        coach plan job.yaml --budget 5gpuh
        coach plan job.yaml --budget 1,2 --nodes 2x4
        coach plan job.yaml --budget 1,2 --probe -1
        coach plan two.yaml --budget 1,2 --figure plan.png
    """,
    "jobs.validate": """
        coach validate
        coach validate none.yaml
        coach validate wrong.yaml
        coach validate notes.txt
        coach validate program.yaml
        coach validate both.yaml
        coach validate both-ways.yaml
        coach validate wrong.yaml --no-check-files
        coach validate job.yaml job.yaml
        coach validate job.yaml --nodes many
        coach validate large.yaml --nodes 2x16
        coach validate offer-dear.yaml
        COACH_CATALOGS=catalogs coach validate offer-bigg.yaml
        COACH_CATALOGS=catalogs coach validate offer-big@west.yaml
        COACH_CATALOGS=catalogs coach validate offer-big-spot.yaml
        COACH_CATALOGS=catalogs coach validate offer-big-often.yaml
        COACH_CATALOGS=catalogs coach validate offer-both.yaml
        COACH_CATALOGS=catalogs coach validate offer-half.yaml
    """,
    "jobs.try_": """
        coach try
        coach try none.yaml
        coach try wrong.yaml
        coach try train.py
        coach try program.yaml
        coach try --
        coach try job.yaml -- python train.py
        coach try --target loss=0.3 job.yaml
        coach try job.yaml --python none
        coach try job.yaml --seconds 0
    """,
    "jobs.program_module": """
        coach program-module now
    """,
    "jobs.budget": """
        coach budget
        coach budget give
        coach budget set team-a
        coach budget set team-a fifty
        coach budget set team-a 50USD/year
        coach budget set team-a 50USD/9999d
        coach budget set 'Team A' 50USD
        coach budget set team-a 50USD --in nobody
        coach budget set team-a 50USD --timezone Berlin
        coach budget set team-a 50USD --label vision
        COACH_HOME=busy coach budget set team-a 50USD
        coach budget show team-a
        coach budget remove team-a
        coach budget report team-a
        coach budget list team-a
    """,
    "results.model": """
        coach model
        COACH_HOME=empty coach model digits
        coach model digist
        coach model own
        coach model fresh
        coach model steady
        coach model steady --epoch first
        coach model steady --epoch 99
    """,
    "results.compare": """
        coach compare
        COACH_HOME=empty coach compare digits
        coach compare digits
        coach compare digits digits
        coach compare digits nobody
        coach compare digits pictures
        coach compare digits fresh
        coach compare digits steady --figure x.jpg
        coach compare digits steady --figure job.yaml/x.svg
    """,
    "results.prune": """
        COACH_HOME=empty coach prune
        coach prune digist
        coach prune digits --yes
    """,
    "results.export": """
        COACH_HOME=empty coach export --last
        coach export digist
        coach export digits --last
        coach export steady --dir job.yaml
        coach export steady --to neptune
        coach export steady --to wandb:runs
    """,
    "results.plot": """
        COACH_HOME=empty coach plot
        coach plot digist
        coach plot fresh
        coach plot steady --last
        coach plot steady --format gif
        coach plot steady --dir job.yaml
    """,
    "results.prices": """
        coach prices --metadata http://127.0.0.1:1
        coach prices --cloud moon
        coach prices --below cheap
        coach prices --below -1
        coach prices --sort best
        coach prices --gpu H100 --currency EUR
        coach prices --gpu H100 --currency EUR --rate EUR=1
        COACH_CATALOGS=catalogs coach prices
        COACH_CATALOGS=no-columns coach prices --cloud mine
        COACH_CATALOGS=no-text coach prices --cloud mine
        COACH_CATALOGS=no-numbers coach prices --cloud mine
        COACH_CATALOGS=no-currency coach prices --cloud mine
        coach prices set
        coach prices set 0.40
        coach prices set 1USD/gpuh 1EUR/coreh
        coach prices set 0.40USD/gpuh
    """,
    "service.serve": """
        coach serve --wrong
        coach serve --port 99999
        coach serve --policy dynamic
        coach serve --policy static:1x1
        coach serve --placement nearest
        coach serve --allow none
        coach serve --nodes many
        coach serve --context dev
        coach serve --log-format xml
        coach serve --notify ftp://x
        coach serve --host 0.0.0.0 --nodes 1x1
        coach serve --token none --nodes 1x1
        coach serve --token open.token --nodes 1x1
        coach serve --token short.token --nodes 1x1
    """,
    "service.ui": """
        COACH_HOME=empty coach ui digits
        coach ui digist
        coach ui --port 99999
    """,
    "service.deploy": """
        coach deploy
        coach deploy slurm job.yaml
        coach deploy nuclio
        coach deploy nuclio none.yaml
        coach deploy nuclio wrong.yaml
        coach deploy nuclio job.yaml --dry-run --delete
        coach deploy nuclio job.yaml --context kind
    """,
    "service.doctor": """
        coach doctor --also pbs
        coach doctor now
        coach doctor --repair
        coach doctor --journal --clock-is-right
        coach doctor --also slurm --journal
    """,
}
