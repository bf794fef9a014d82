"""Programs that go through a compiler's front-end first: fx, export, Dynamo, AOT, Inductor."""
