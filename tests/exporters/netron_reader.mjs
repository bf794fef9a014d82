// Opens ONNX files with Netron's own reader and prints, as one line of JSON each, what it found.
// usage: node netron_reader.mjs <folder of Netron's JavaScript> <folder of .onnx files>
import * as fs from 'node:fs';
import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

const [netron, folder] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(path.join(netron, name)));
const view = await load('view.js');
const base = await load('base.js');

const host = {
    environment: () => null,
    require: (id) => load(`${id}.js`),
    asset: (name) => fs.promises.readFile(path.join(netron, name), 'utf-8'),
    event: () => {},
    exception: (error) => { throw error; }
};

class File {
    constructor(name) {
        this.identifier = name;
        this.name = name;
        this.stream = new base.BinaryStream(fs.readFileSync(path.join(folder, name)));
        this.entries = new Map();
    }
    require(id) { return host.require(id); }
    asset(name) { return host.asset(name); }
    error(error) { throw error; }
}

const text = (value) => value.type ? value.type.toString() : '';

const describe = (graph) => {
    const bodies = [];
    const nodes = graph.nodes.map((node) => {
        for (const attribute of node.attributes) {
            if (attribute.type === 'graph') {
                bodies.push(attribute.value);
            }
        }
        const argument = ({ name, value }) => ({
            name,
            values: value.map((item) => ({ name: item.name, type: text(item), weight: Boolean(item.initializer) }))
        });
        return {
            name: node.name,
            type: node.type.name,
            description: node.description,
            inputs: node.inputs.map(argument),
            outputs: node.outputs.map(argument),
            attributes: node.attributes.map((item) => new view.Formatter(item.value, item.type).toString()),
            metadata: Object.fromEntries(node.metadata.map((item) => [item.name, item.value]))
        };
    });
    const names = (list) => list.map((item) => item.name);
    return { graph: { name: graph.name, inputs: names(graph.inputs), outputs: names(graph.outputs), nodes }, bodies };
};

const service = new view.ModelFactoryService(host);
for (const name of fs.readdirSync(folder).filter((file) => file.endsWith('.onnx')).sort()) {
    const found = { file: name, graphs: [], error: null };
    try {
        const model = await service.open(new File(name));
        const waiting = [...model.modules];
        while (waiting.length > 0) {
            const { graph, bodies } = describe(waiting.pop());
            found.graphs.push(graph);
            waiting.push(...bodies);
        }
    } catch (error) {
        found.error = error.stack;
    }
    console.log(JSON.stringify(found));
}
