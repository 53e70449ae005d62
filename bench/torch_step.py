"""The training step of step_bench in PyTorch: the same model, batch and optimizer, written as nanoGPT writes them.

Prints one JSON object. With --ranks 2 it starts that many processes and trains with DistributedDataParallel over gloo,
whose all-reduce happens once a step (no_sync for all but the last micro-batch), as a careful user has it.
"""

import argparse
import json
import os
import resource
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(layers=8, hidden=512, heads=8, sequence=128, vocabulary=256, global_batch=8, micro_batch=1,
                              ranks=1, threads=1, steps=3).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    parser.add_argument("--blas-threads", type=int, default=0, help="of OpenBLAS (default: as many as --threads)")
    parser.add_argument("--foreach", action="store_true", help="AdamW over lists of tensors")
    return parser.parse_args()


options = parse()
# The BLAS reads its number of threads when it is loaded; torch.set_num_threads does not reach it. So does OpenMP.
os.environ["OPENBLAS_NUM_THREADS"] = str(options.blas_threads or options.threads)
os.environ["OMP_NUM_THREADS"] = str(options.threads)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else its threads spin, and take the BLAS's their cores
try:
    import torch
except ImportError as error:
    print(json.dumps({"missing": f"PyTorch: {error}"}))
    sys.exit(0)

import math  # noqa: E402
from contextlib import nullcontext  # noqa: E402

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


class Attention(nn.Module):
    def __init__(self, hidden, heads, sequence):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)
        mask = torch.tril(torch.ones(sequence, sequence)).view(1, 1, sequence, sequence)
        self.hidden_part = mask == 0  # no buffer: gloo does not broadcast booleans

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (part.view(b, s, self.heads, d // self.heads).transpose(1, 2) for part in self.c_attn(x).split(d, 2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(d // self.heads))
        weights = functional.softmax(scores.masked_fill(self.hidden_part[:, :, :s, :s], float("-inf")), dim=-1)
        return self.c_proj((weights @ v).transpose(1, 2).contiguous().view(b, s, d))


class Block(nn.Module):
    def __init__(self, hidden, heads, sequence):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden)
        self.attn = Attention(hidden, heads, sequence)
        self.ln_2 = nn.LayerNorm(hidden)
        self.c_fc = nn.Linear(hidden, 4 * hidden)
        self.c_proj = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, hidden, heads, sequence, vocabulary):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, hidden)
        self.wpe = nn.Embedding(sequence, hidden)
        self.h = nn.ModuleList(Block(hidden, heads, sequence) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if "c_proj" in name else 1))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="sum")


def processor_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def train(rank, o):
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    model = GPT(o.layers, o.hidden, o.heads, o.sequence, o.vocabulary)
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=o.foreach)
    trained = nn.parallel.DistributedDataParallel(model) if o.ranks > 1 else model
    micro_batches = o.global_batch // o.micro_batch // o.ranks
    scale = o.ranks / (o.global_batch * o.sequence)  # DDP takes the mean over ranks
    wall, processor, losses = [], [], []
    for step in range(o.steps + 1):
        data = torch.randint(o.vocabulary, (micro_batches, o.micro_batch, o.sequence + 1))
        if o.ranks > 1:
            torch.distributed.barrier()
        start, processor_start = time.perf_counter(), processor_s()
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for i in range(micro_batches):
            last = i + 1 == micro_batches
            with trained.no_sync() if o.ranks > 1 and not last else nullcontext():
                part = trained(data[i, :, :-1], data[i, :, 1:]) * scale
                part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step > 0:  # the first one warms up
            wall.append(time.perf_counter() - start)
            processor.append(processor_s() - processor_start)
            losses.append(loss)
    return {"tokens": o.global_batch * o.sequence, "parameters": sum(p.numel() for p in model.parameters()),
            "loss": losses, "step": {"wall_s": wall, "processor_s": processor}, "torch": torch.__version__}


def rank_main(rank, o, store):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=o.ranks)
    result = train(rank, o)
    if rank == 0:
        print(json.dumps(result))
    torch.distributed.barrier()


def main():
    if options.ranks == 1:
        print(json.dumps(train(0, options)))
        return
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (options, os.path.join(folder, "store")), nprocs=options.ranks)


if __name__ == "__main__":
    main()
