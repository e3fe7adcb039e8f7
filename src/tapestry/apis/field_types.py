"""Types of fields that several of our kinds have: names, keys, references and node selectors."""

from itertools import chain, product
from typing import Annotated, Any, Literal

from msgspec import Meta

from tapestry.kube.api_types import ApiStruct
from tapestry.kube.schemas import to_unstructured

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Key = Annotated[str, Meta(min_length=1, max_length=317)]  # prefix (253), slash, name (63)
DnsLabel = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class SecretReference(ApiStruct):
    """Reference to the Secret that holds the kubeconfig, under the key `kubeconfig`."""

    name: Annotated[Name, Meta(description="Name of the Secret.")]
    namespace: Annotated[DnsLabel, Meta(description="A namespace that the manager reads kubeconfigs from.")]


class SelectorRequirement(ApiStruct):
    key: Annotated[Key, Meta(description="Label key, or `metadata.name` for a field.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], Meta(description="Comparison operator.")
    ]
    values: Annotated[tuple[str, ...], Meta(description="Values to compare with.")] = ()


class NodeSelectorTerm(ApiStruct):
    match_expressions: Annotated[
        tuple[SelectorRequirement, ...], Meta(description="Requirements on labels. All must match.")
    ] = ()
    match_fields: Annotated[
        tuple[SelectorRequirement, ...], Meta(description="Requirements on fields. All must match.")
    ] = ()


class NodeSelector(ApiStruct):
    """Node selector, as in the required node affinity of a pod.  A node matches if one term matches."""

    node_selector_terms: Annotated[
        tuple[NodeSelectorTerm, ...], Meta(min_length=1, description="Terms. At least one must match.")
    ]


def intersection(*selectors: NodeSelector | None) -> NodeSelector | None:
    """Return the selector of the nodes that all selectors match; None matches every node."""
    given = [[*filter(has_requirements, each.node_selector_terms)] for each in selectors if each is not None]
    if not given:
        return None
    terms = (
        NodeSelectorTerm(
            tuple(chain.from_iterable(each.match_expressions for each in combination)),
            tuple(chain.from_iterable(each.match_fields for each in combination)),
        )
        for combination in product(*given)
    )
    return NodeSelector(tuple(terms) or (NodeSelectorTerm(),))


def has_requirements(term: NodeSelectorTerm) -> bool:
    """Return whether a term has any requirement; without one, it matches no node."""
    return bool(term.match_expressions or term.match_fields)


def node_selector_object(selector: NodeSelector | None) -> Any:
    """Return the selector in the form that `tapestry.kube.selectors.node_selector` reads."""
    return to_unstructured(selector)
