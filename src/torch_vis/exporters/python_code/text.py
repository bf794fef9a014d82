"""The text that saved programs share: loading of weights, containers, and the model around the graphs."""

from __future__ import annotations

LOADING = '''
def load_weights(path=None):
    """The tensors of this program, from the file beside it: tied ones are one tensor, views share memory."""
    blocks = load_file(path or os.path.splitext(__file__)[0] + ".safetensors")
    blocks = {name: block.clone() for name, block in blocks.items()}  # memory aligned as torch aligns it
    made, moved, found = {}, {}, {}
    for name, place in WEIGHTS.items():
        if place not in made:
            block, dtype, offset, shape, stride, device, kind = place
            if (block, device) not in moved:
                moved[block, device] = blocks[block].to(device)
            tensor = moved[block, device].view(-1).view(getattr(torch, dtype)).as_strided(shape, stride, offset)
            if kind != "tensor":
                tensor = torch.nn.Parameter(tensor, requires_grad=kind == "parameter")
            made[place] = tensor
        found[name] = made[place]
    return found


def put(module, path, item):
    """Set an attribute by its path, with modules on the way, as ``state_dict`` names it."""
    *parents, name = path.split(".")
    for part in parents:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module._modules[part]
    if isinstance(item, torch.nn.Parameter):
        module.register_parameter(name, item)
    elif isinstance(item, torch.nn.Module):
        module.add_module(name, item)
    elif isinstance(item, torch.Tensor):
        module.register_buffer(name, item)
    else:
        setattr(module, name, item)


def get(module, path):
    for part in path.split("."):
        module = getattr(module, part)
    return module
'''

CONTAINERS = '''
def flatten(item, plan, place="the inputs"):
    """The leaves of nested containers that have to be as they were captured."""
    kind = plan[0]
    if kind == "leaf":
        return [item]
    parts = plan[-1]
    if kind == "dict":
        if isinstance(item, dict) and set(item) - set(plan[1]):
            raise TypeError(f"{place}: {sorted(map(str, set(item) - set(plan[1])))} not expected, but {list(plan[1])}")
        found = []
        for key, part in zip(plan[1], parts):
            try:
                below = item[key] if hasattr(item, "keys") else getattr(item, key)
            except (KeyError, AttributeError):
                raise TypeError(f"{place}: {key!r} is missing") from None
            found += flatten(below, part, f"{place}.{key}")
        return found
    if not isinstance(item, (tuple, list)) or len(item) != len(parts):
        given = f"{len(item)} given" if isinstance(item, (tuple, list)) else f"{type(item).__name__} given"
        raise TypeError(f"{place}: {len(parts)} expected, {given}")
    return [leaf for i, part in enumerate(parts) for leaf in flatten(item[i], part, f"{place}.{i}")]


def unflatten(leaves, plan):
    """Nested containers from an iterator of leaves."""
    if plan[0] == "leaf":
        return next(leaves)
    parts = [unflatten(leaves, part) for part in plan[-1]]
    return dict(zip(plan[1], parts)) if plan[0] == "dict" else tuple(parts) if plan[0] == "tuple" else parts
'''

EXPORTED = '''
class Model(torch.nn.Module):
    """The whole model, called as it was when it was captured."""

    def __init__(self, weights):
        super().__init__()
        for name, item in weights.items():
            if name in STATE:
                put(self, name, item)
        for name, device in GENERATORS.items():
            put(self, name, torch.Generator(device))
            get(self, name).set_state(weights[name])
        object.__setattr__(self, "_graph", Graph(weights))

    def forward(self, *args, **kwargs):
        users = iter(flatten((args, kwargs), INPUTS))
        inputs = []
        for kind, known in SIGNATURE:
            if kind == "state":
                inputs.append(get(self, known))
                continue
            given = next(users)
            if kind == "constant" and given != known:
                raise ValueError(f"captured with {known!r}; {given!r} is another program and needs its own capture")
            inputs.append(given)
        outputs = []
        for (kind, target), made in zip(RESULTS, self._graph(*inputs)):
            if kind == "output":
                outputs.append(made)
            elif kind != "nothing":
                with torch.no_grad():
                    (get(self, target) if kind == "state" else inputs[target]).copy_(made)
        return unflatten(iter(outputs), OUTPUTS)


def load(path=None):
    """The model with its weights."""
    return Model(load_weights(path))
'''

PARTITIONED = '''
class Partition(torch.nn.Module):
    """One graph with its weights: called with the inputs that ``PARTITIONS`` lists for it, in that order."""

    def __init__(self, number, weights):
        super().__init__()
        self.number = number
        self.graph = GRAPHS[number](weights)
        self.held = torch.nn.Module()
        for _, name, *_ in PARTITIONS[number]:
            if name is not None:
                put(self.held, name, weights[name])

    def forward(self, *inputs):
        wanted = [row for row in PARTITIONS[self.number] if row[1] is None]
        if len(inputs) != len(wanted):
            names = ", ".join(row[0] for row in wanted)
            raise TypeError(f"partition {self.number} takes {len(wanted)} inputs ({names}), not {len(inputs)}")
        given, rows = iter(inputs), PARTITIONS[self.number]
        return self.graph(*(next(given) if row[1] is None else get(self.held, row[1]) for row in rows))
'''

PARTS = '''
def load_parts(path=None):
    """The partitions with their weights, in the order in which they ran."""
    weights = load_weights(path)
    return [Partition(number, weights) for number in range(len(PARTITIONS))]
'''

LONE_PART = '''
def load(path=None):
    """The partition with its weights."""
    return load_parts(path)[0]
'''

SEVERAL_PARTS = """
load = load_parts
"""

RECORDED = '''
def decided(now, was, place):
    """See whether a value that the program looked at is what it was: another truth is another way through it."""
    if now == was or (now != now and was != was):
        return
    told = f"the value looked at in {place} was {was!r} when this was recorded and is {now!r} now"
    if isinstance(was, bool):
        raise RuntimeError(f"{told}: other operations would run than those in this file")
    warnings.warn(f"{told}: what the program decided by it is as recorded", stacklevel=4)


def fresh(result, written):
    """The tensors that an operator made, without those that it wrote to."""
    if isinstance(result, torch.Tensor):
        return [] if any(result is tensor for tensor in written) else [result]
    return [tensor for part in result or () for tensor in fresh(part, written)]


class Model(torch.nn.Module):
    """The recorded run: every operation as it ran, called as it was when it was recorded. It gives no gradients."""

    def __init__(self, weights):
        super().__init__()
        for name in STATE:
            put(self, name, weights[name])

    def forward(self, *args, **kwargs):
        leaves = zip(LEAVES, flatten((args, kwargs), INPUTS))
        given = {name: leaf.detach() for name, leaf in leaves if name is not None}
        with torch.no_grad():
            made = recorded({name: get(self, name) for name in STATE}, given)
        return unflatten((made[known] if kind == "graph" else known for kind, known in RESULTS), OUTPUTS)


def load(path=None):
    """The model with its weights."""
    return Model(load_weights(path))
'''

WHOLE = '''
def bind(args, kwargs):
    """The arguments under the names that the model gives them."""
    if len(args) > len(NAMES) and REST is None:
        raise TypeError(f"{len(NAMES)} positional arguments at most, {len(args)} given")
    found = dict(zip(NAMES, args))
    if REST is not None:
        found[REST] = args[len(NAMES) :]
    named = {name: item for name, item in kwargs.items() if name in NAMES or name in NAMED}
    others = {name: item for name, item in kwargs.items() if name not in named}
    if others and OTHERS is None:
        raise TypeError(f"no argument {min(others)!r}")
    return {**found, **named, **({OTHERS: others} if OTHERS is not None else {})}


class Model(torch.nn.Module):
    """The whole model, called as it was when it was captured."""

    def __init__(self, weights):
        super().__init__()
        self.partition = Partition(0, weights)

    def forward(self, *args, **kwargs):
        try:
            inputs = inputs_of(bind(args, kwargs))
        except (KeyError, IndexError) as missing:
            raise TypeError(f"captured with an argument that is missing here: {missing}") from None
        made = self.partition(*inputs)
        leaves = (made[known] if kind == "graph" else known for kind, known in RESULTS)
        return unflatten(leaves, OUTPUTS)


def load(path=None):
    """The model with its weights."""
    return Model(load_weights(path))
'''
