"""Tree of a virtual cluster and its text."""

from tapestry.inspect.tables import tree_text
from tapestry.inspect.tree import BindingBranch, NodeBranch, PodLeaf, Tree


def test_tree_draws_connected_branches() -> None:
    pods = [PodLeaf("shop/a", "Running", "leased/a-1", ""), PodLeaf("shop/b", "Pending", "", "SecretMissing")]
    nodes = [NodeBranch("vnode-e1-n1", "n1", "Open", pods), NodeBranch("vnode-e1-n2", "n2", "Closed", [])]
    tree = Tree("v", [BindingBranch("east", "e1", "Ready", "Leasing", nodes), BindingBranch("west", "w1", "", "", [])])
    assert tree_text(tree).splitlines() == [
        "virtual cluster v",
        "├─ east (e1): Ready, Leasing; 2 nodes, 2 pods",
        "│  ├─ vnode-e1-n1 -> n1: Open",
        "│  │  ├─ shop/a -> leased/a-1: Running",
        "│  │  └─ shop/b: Pending, SecretMissing",
        "│  └─ vnode-e1-n2 -> n2: Closed",
        "└─ west (w1): -; 0 nodes, 0 pods",
    ]


def test_tree_without_bindings_shows_hint() -> None:
    assert "tapestry join" in tree_text(Tree("v", []))
