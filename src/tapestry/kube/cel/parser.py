"""Lexer and precedence parser of CEL.

Macros have their own nodes (`Comprehension`, `OptionalMap`) because they declare variables. `at` is the offset at which
errors of a node are reported, as in cel-go.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.kube.cel.errors import CompileError, Issue
from tapestry.kube.cel.values import UInt

MAX_DEPTH = 60
"""Limit of the depth of a tree. Python's stack must hold it twice."""

TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n\f]+|//[^\n]*)+)
    |(?P<string>[bB]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n\r]|\\.)*"|'(?:[^'\\\n\r]|\\.)*'))
    |(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<int>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
RAW_STRING = re.compile(r"""(?:[bB]?[rR][bB]?)(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n\r]*"|'[^'\n\r]*')""", re.DOTALL)
RESERVED = frozenset(
    {
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "return", "var", "void", "while"),
    }
)
BINARY_OPERATORS = {
    "||": (1, "_||_"),
    "&&": (2, "_&&_"),
    **{sign: (3, f"_{sign}_") for sign in ("<", "<=", ">", ">=", "==", "!=")},
    "in": (3, "@in"),
    "+": (4, "_+_"),
    "-": (4, "_-_"),
    "*": (5, "_*_"),
    "/": (5, "_/_"),
    "%": (5, "_%_"),
}
EXPECTED_EXPRESSION_TOKENS = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)


@dataclass(frozen=True, slots=True)
class Node:
    at: int


@dataclass(frozen=True, slots=True)
class Literal(Node):
    value: Any


@dataclass(frozen=True, slots=True)
class Ident(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    operand: Node
    field: str
    test: bool = False
    """True for has(), which tests for the presence of the field."""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call(Node):
    function: str
    target: Node | None
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ListLiteral(Node):
    items: tuple[tuple[Node, bool], ...]
    """Items, each with True if it is optional."""


@dataclass(frozen=True, slots=True)
class MapLiteral(Node):
    entries: tuple[tuple[Node, Node, bool], ...]


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """Macro over the elements of a list or a map."""

    macro: str
    source: Node
    variables: tuple[str, ...]
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class OptionalMap(Node):
    target: Node
    variable: str
    body: Node
    flat: bool


MACROS = {
    "all": {2: 1, 3: 2},
    "exists": {2: 1, 3: 2},
    "exists_one": {2: 1, 3: 2},
    "existsOne": {3: 2, 2: 1},
    "filter": {2: 1},
    "map": {2: 1, 3: 1},
    "transformList": {3: 2, 4: 2},
    "transformMap": {3: 2, 4: 2},
    "transformMapEntry": {3: 2, 4: 2},
}
"""Number of variables of each macro, by its number of arguments."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: int


def tokenize(text: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(text):
        match = RAW_STRING.match(text, at) or TOKEN.match(text, at)
        if match is None:
            raise CompileError(text, [Issue(at, f"Syntax error: token recognition error at: '{text[at]}'")])
        kind = match.lastgroup or "string"
        if kind != "space":
            tokens.append(Token(kind, match.group(), at))
        at = match.end()
    return [*tokens, Token("end", "<EOF>", len(text))]


def parse_expression(text: str) -> Node:
    """Parse an expression. Raise CompileError."""
    parser = Parser(text)
    node = parser.expression()
    if parser.token.kind != "end":
        token = parser.take()
        adjective = "extraneous" if parser.token.kind == "end" else "mismatched"
        raise parser.error(token.at, f"Syntax error: {adjective} input '{token.text}' expecting <EOF>")
    return node


class Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._next = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._next]

    def error(self, at: int, message: str) -> CompileError:
        return CompileError(self._text, [Issue(at, message)])

    def take(self) -> Token:
        token = self.token
        self._next += 1
        return token

    def accept(self, sign: str) -> bool:
        if self.token.kind == "sign" and self.token.text == sign:
            self._next += 1
            return True
        return False

    def expect(self, sign: str) -> Token:
        if self.token.kind != "sign" or self.token.text != sign:
            raise self.error(self.token.at, f"Syntax error: missing '{sign}' at '{self.token.text}'")
        return self.take()

    def accept_separator(self, end: str) -> bool:
        """Return True if another item follows. Otherwise the closing token has been read."""
        if self.accept(","):
            return True
        if not self.accept(end):
            message = f"Syntax error: mismatched input '{self.token.text}' expecting {{'{end}', ','}}"
            raise self.error(self.token.at, message)
        return False

    # -- operators by precedence

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(self.token.at, f"expression recursion limit exceeded: {MAX_DEPTH}")
        node = self.binary(1)
        if self.token.kind == "sign" and self.token.text == "?":
            at = self.take().at
            if_true = self.binary(1)
            self.expect(":")
            node = Call(at, "_?_:_", None, (node, if_true, self.expression()))
        self._depth -= 1
        return node

    def binary(self, min_precedence: int) -> Node:
        left, length = self.unary(), 0
        while (operator := BINARY_OPERATORS.get(self.token.text)) is not None and self.token.kind in ("sign", "word"):
            precedence, function = operator
            if precedence < min_precedence:
                break
            at = self.take().at
            right = self.binary(precedence + 1)
            if function in ("_&&_", "_||_") and isinstance(left, Call) and left.function == function:
                left = Call(at, function, None, (*left.args, right))  # a chain of one operator is one node
                continue
            left, length = Call(at, function, None, (left, right)), length + 1
            if length > MAX_DEPTH:
                raise self.error(at, f"expression recursion limit exceeded: {MAX_DEPTH}")
        return left

    def unary(self) -> Node:
        if self.token.kind != "sign" or self.token.text not in ("!", "-"):
            return self.member()
        sign = self.token.text
        first, count = self.token, 0
        while self.accept(sign):
            count += 1
        if sign == "-" and count == 1 and self.token.kind in ("int", "float"):
            return self.member(negative=first)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(first.at, f"expression recursion limit exceeded: {MAX_DEPTH}")
        operand = self.unary()
        self._depth -= 1
        return Call(first.at, f"{sign}_", None, (operand,)) if count % 2 else operand

    def member(self, negative: Token | None = None) -> Node:
        node, length = self.primary(negative), 0
        while self.token.kind == "sign" and self.token.text in (".", "["):
            length += 1
            if length > MAX_DEPTH:
                raise self.error(self.token.at, f"expression recursion limit exceeded: {MAX_DEPTH}")
            opening = self.take()
            optional = self.accept("?")
            if opening.text == "[":
                index = self.expression()
                self.expect("]")
                node = Call(opening.at, "_[?_]" if optional else "_[_]", None, (node, index))
                continue
            name = self.take()
            if name.kind != "word" or name.text in ("in", "true", "false", "null"):
                name_text = name.text if name.kind != "end" else ""
                raise self.error(name.at, f"Syntax error: no viable alternative at input '.{name_text}'")
            if not optional and self.token.kind == "sign" and self.token.text == "(":
                node = self.call(name, node)
            else:
                node = Select(opening.at, node, name.text, optional=optional)
        return node

    def call(self, name: Token, target: Node | None) -> Node:
        at = self.expect("(").at
        args = self.arguments(")")
        if target is None and name.text == "has" and len(args) == 1:
            return self.presence_test(args[0])
        if target is not None and len(args) in MACROS.get(name.text, ()):
            return self.comprehension(name.text, target, args, at)
        if target is not None and name.text in ("optMap", "optFlatMap") and len(args) == 2:
            [variable] = self.variables(args[:1])
            return OptionalMap(at, target, variable, args[1], name.text == "optFlatMap")
        return Call(at, name.text, target, args)

    def presence_test(self, argument: Node) -> Node:
        if isinstance(argument, Select) and not argument.test:
            return Select(argument.at, argument.operand, argument.field, test=True)
        raise self.error(argument.at, "invalid argument to has() macro")

    def comprehension(self, macro: str, target: Node, args: tuple[Node, ...], at: int) -> Node:
        count = MACROS[macro][len(args)]
        name = "exists_one" if macro == "existsOne" else macro
        return Comprehension(at, name, target, self.variables(args[:count]), args[count:])

    def variables(self, args: Sequence[Node]) -> tuple[str, ...]:
        for each in args:
            if not isinstance(each, Ident):
                raise self.error(each.at, "argument must be a simple name")
        return tuple(each.name for each in args if isinstance(each, Ident))

    def arguments(self, end: str) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while not self.accept(end):
            nodes.append(self.expression())
            if not self.accept_separator(end):
                break
        return tuple(nodes)

    # -- primaries

    def primary(self, negative: Token | None) -> Node:
        token = self.take()
        at = negative.at if negative is not None else token.at
        match token.kind, token.text:
            case "word", "true" | "false" | "null":
                return Literal(at, {"true": True, "false": False, "null": None}[token.text])
            case "word", name if name != "in":
                return self.identifier(token)
            case "string", _:
                return Literal(at, self.string(token))
            case "int" | "float", _:
                return Literal(at, self.number(token, at, minus=negative is not None))
            case "sign", "(":
                node = self.expression()
                self.expect(")")
                return node
            case "sign", ".":
                return self.identifier(self.take())
            case "sign", "[":
                return ListLiteral(at, self.items())
            case "sign", "{":
                return MapLiteral(at, self.entries())
        adjective = "mismatched" if token.kind == "end" else "extraneous"
        raise self.error(at, f"Syntax error: {adjective} input '{token.text}' expecting {EXPECTED_EXPRESSION_TOKENS}")

    def identifier(self, token: Token) -> Node:
        if token.text in RESERVED:
            raise self.error(token.at, f"reserved identifier: {token.text}")
        if self.token.kind == "sign" and self.token.text == "(":
            return self.call(token, None)
        return Ident(token.at, token.text)

    def items(self) -> tuple[tuple[Node, bool], ...]:
        nodes = []
        while not self.accept("]"):
            optional = self.accept("?")
            nodes.append((self.expression(), optional))
            if not self.accept_separator("]"):
                break
        return tuple(nodes)

    def entries(self) -> tuple[tuple[Node, Node, bool], ...]:
        pairs = []
        while not self.accept("}"):
            optional = self.accept("?")
            key = self.expression()
            self.expect(":")
            pairs.append((key, self.expression(), optional))
            if not self.accept_separator("}"):
                break
        return tuple(pairs)

    def number(self, token: Token, at: int, *, minus: bool) -> Any:
        if token.kind == "float":
            return -float(token.text) if minus else float(token.text)
        digits = token.text.rstrip("uU")
        value = int(digits, 16 if digits.startswith("0x") else 10)
        if digits != token.text:
            if minus or value >= 2**64:
                raise self.error(at, "invalid uint literal")
            return UInt(value)
        value = -value if minus else value
        if not -(2**63) <= value < 2**63:
            raise self.error(at, "invalid int literal")
        return value

    def string(self, token: Token) -> Any:
        quote = re.search("['\"]", token.text)
        assert quote is not None
        prefix, body = token.text[: quote.start()].lower(), token.text[quote.start() :]
        width = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
        body = body[width:-width]
        try:
            text = body if "r" in prefix else ESCAPE.sub(lambda match: unescape(match, as_bytes="b" in prefix), body)
        except ValueError as error:
            raise self.error(token.at, str(error)) from error
        return text.encode("utf-8", "surrogateescape") if "b" in prefix else text


ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
ESCAPE_CHARACTERS = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{each: each for each in "\\\"'`?"},
}


def unescape(match: re.Match[str], *, as_bytes: bool) -> str:
    text = match.group(1)
    if text in ESCAPE_CHARACTERS:
        return ESCAPE_CHARACTERS[text]
    if len(text) == 1:
        raise ValueError(f"unable to unescape string: \\{text}")
    code = int(text, 8) if text[0].isdigit() else int(text[1:], 16)
    if as_bytes and text[0] not in "uU" and code > 127:
        return bytes([code]).decode("utf-8", "surrogateescape")
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise ValueError("unable to unescape string: invalid unicode code point")
    return chr(code)
