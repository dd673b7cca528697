"""Canonical form, digests, generation ids and refusals of manifests."""

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_protocol import manifests
from ryusen_protocol.ids import Application, FunctionId, ManifestGeneration, RoutingGeneration, TriggerId, Workspace
from ryusen_protocol.limits import MANIFEST_TIMEOUT_MS_MAX
from ryusen_protocol.manifest import FunctionDeclaration, Publication, TriggerDeclaration
from ryusen_protocol.scope import Scope

SHOP = Scope(Workspace("default"), Application("shop"))
FULFIL = FunctionDeclaration(FunctionId("fulfil-order"), 7_200_000)
PACK = FunctionDeclaration(FunctionId("pack-box"))
PLACED = TriggerDeclaration(TriggerId("fulfil-order/order/placed"), "order/placed", FunctionId("fulfil-order"))
PAID = TriggerDeclaration(TriggerId("pack-box/order/paid"), "order/paid", FunctionId("pack-box"))
CONTENTS = (
    b'{"functions":[{"id":"fulfil-order","timeout_ms":7200000},{"id":"pack-box"}],"triggers":['
    b'{"event_name":"order/placed","function":"fulfil-order","id":"fulfil-order/order/placed"},'
    b'{"event_name":"order/paid","function":"pack-box","id":"pack-box/order/paid"}]}'
)


def publication(
    functions: list[FunctionDeclaration] | None = None,
    triggers: list[TriggerDeclaration] | None = None,
    *,
    expected_parent: str | None = None,
    contents: str = "",
    protocol_version: int = 1,
) -> Publication:
    return Publication(
        protocol_version=protocol_version,
        expected_parent=None if expected_parent is None else ManifestGeneration(expected_parent),
        functions=[FULFIL, PACK] if functions is None else functions,
        triggers=[PLACED, PAID] if triggers is None else triggers,
        contents=contents,
    )


def function(identity: str, timeout_ms: int | None = None) -> FunctionDeclaration:
    return FunctionDeclaration(FunctionId(identity), timeout_ms)


def trigger(identity: str, event_name: str = "order/placed", target: str = "fulfil-order") -> TriggerDeclaration:
    return TriggerDeclaration(TriggerId(identity), event_name, FunctionId(target))


@pytest.mark.req("MAN-15")
def test_contents_are_these_bytes_whatever_the_order_of_registration():
    assert manifests.sdk_contents([FULFIL, PACK], [PLACED, PAID]) == CONTENTS
    assert manifests.sdk_contents([PACK, FULFIL], [PAID, PLACED]) == CONTENTS


def test_content_digest_is_the_digest_of_this_document():
    digest = manifests.content_digest("e30=", [PACK, FULFIL], [PAID, PLACED])
    document = b'{"contents":"e30=",' + CONTENTS[1:]
    assert digest == manifests.sha256_digest(document)
    assert digest == "sha256:" + hashlib.sha256(document).hexdigest()


def test_ids_sort_by_their_utf8_bytes_not_their_utf16_units():
    astral, private = function("\U0001f600"), function("\uff5e")  # UTF-16 puts the surrogates of the first before the second
    ordered, _ = manifests.canonical_declarations([astral, private], [])
    assert ordered == [private, astral]
    assert [entry["id"] for entry in json.loads(manifests.sdk_contents([astral, private], []))["functions"]] == [
        "\uff5e",
        "\U0001f600",
    ]


@pytest.mark.req("MAN-12")
@given(st.permutations([function("a", 5), function("b"), function("ü")]), st.permutations([PLACED, PAID, trigger("x")]))
def test_shuffled_declarations_are_one_manifest(functions: list[FunctionDeclaration], triggers: list[TriggerDeclaration]):
    reference = publication([function("a", 5), function("b"), function("ü")], [PLACED, PAID, trigger("x")])
    shuffled = publication(functions, triggers)
    assert manifests.canonical_declarations(functions, triggers) == manifests.canonical_declarations(
        reference.functions, reference.triggers
    )
    assert manifests.manifest_generation_id(SHOP, None, shuffled) == manifests.manifest_generation_id(SHOP, None, reference)


@pytest.mark.req("MAN-14", "MAN-04")
def test_generation_id_hashes_scope_parent_contents_and_declarations():
    def identity(scope: Scope = SHOP, parent: str | None = None, *, of: Publication) -> str:
        return manifests.manifest_generation_id(scope, None if parent is None else ManifestGeneration(parent), of)

    same = publication()
    distinct = [
        identity(of=same),
        identity(parent="", of=same),
        identity(parent="mg_1", of=same),
        identity(parent="mg_2", of=same),
        identity(Scope(Workspace("other"), Application("shop")), of=same),
        identity(Scope(Workspace("default"), Application("other")), of=same),
        identity(Scope(Workspace("defaults"), Application("hop")), of=same),
        identity(of=publication(contents="e30=")),
        identity(of=publication([FULFIL, function("pack-box", 1)])),
        identity(of=publication([FULFIL, PACK, function("more")])),
        identity(of=publication(triggers=[PLACED])),
        identity(of=publication(triggers=[PLACED, trigger(PAID.id, "order/paid", "fulfil-order")])),
    ]
    assert len(set(distinct)) == len(distinct)
    assert identity(of=publication()) == distinct[0]
    # Stored heads name these ids: a release that derived others would publish every application anew.
    assert distinct[0] == "mg_gVm4C7TE09tp8mEg8pasmr"


def test_sdk_publication_is_canonical_and_accepted():
    built = manifests.sdk_publication([PACK, FULFIL], [PAID, PLACED], ManifestGeneration("mg_1"))
    assert base64.b64decode(built.contents) == CONTENTS
    assert [declared.id for declared in built.functions] == ["fulfil-order", "pack-box"]
    assert built.expected_parent == "mg_1"
    assert manifests.check_publication(built) is None


@pytest.mark.req("MAN-13")
@pytest.mark.parametrize(
    ("refused", "path", "says"),
    [
        (publication([function("")], []), "$.functions[0].id", "empty"),
        (publication([FULFIL, FULFIL], []), "$.functions[1].id", "twice"),
        (publication(triggers=[trigger("")]), "$.triggers[0].id", "empty"),
        (publication(triggers=[trigger("t", "")]), "$.triggers[0].event_name", "empty"),
        (publication(triggers=[trigger("t", target="nobody")]), "$.triggers[0].function", "does not declare"),
        (publication(triggers=[trigger("t", target="")]), "$.triggers[0].function", "does not declare"),
        (publication(triggers=[PLACED, PAID, trigger(PAID.id)]), "$.triggers[2].id", "twice"),
        (publication([function("a\x00b")], []), "$.functions[0].id", "NUL"),
        (publication([function("a\ud800")], []), "$.functions[0].id", "surrogate"),
        (publication([function("a", 0)], []), "$.functions[0].timeout_ms", "1 to"),
        (publication([function("a", -5)], []), "$.functions[0].timeout_ms", "1 to"),
        (publication([function("a", 2**53)], []), "$.functions[0].timeout_ms", "1 to"),
        (publication([function("a", 1001)], []), "$.functions[0].timeout_ms", "1000 ms this server"),
        (publication(contents="e30"), "$.contents", "base64"),
        (publication(contents="e31="), "$.contents", "base64"),
        (publication(contents="e30=\n"), "$.contents", "base64"),
    ],
)
def test_refusals_say_what_and_where(refused: Publication, path: str, says: str):
    refusal = manifests.check_publication(refused, timeout_ms_max=1000 if "this server" in says else None)
    assert refusal is not None
    assert (refusal.code, refusal.path) == ("invalid", path)
    assert says in refusal.message


def test_ids_are_bounded_in_bytes_not_characters():
    fits, exceeds = function("ü" * 128), function("ü" * 129)
    assert manifests.check_publication(publication([fits], [])) is None
    refusal = manifests.check_publication(publication([exceeds], []))
    assert refusal is not None
    assert refusal.code == "limit_exceeded"
    assert "258 bytes" in refusal.message


def test_a_timeout_at_the_edge_of_exactness_is_kept_exactly():
    edge = function("a", MANIFEST_TIMEOUT_MS_MAX)
    assert manifests.check_publication(publication([edge], [])) is None
    assert b'"timeout_ms":9007199254740991' in manifests.sdk_contents([edge], [])


def test_another_protocol_version_is_refused_by_name():
    refusal = manifests.check_publication(publication(protocol_version=2))
    assert refusal is not None
    assert refusal.code == "unsupported_version"
    assert "2" in refusal.message


def test_a_manifest_may_declare_nothing():
    assert manifests.check_publication(publication([], [])) is None


def test_routing_ids_depend_on_workspace_parent_and_mapping():
    mapping = {Application("shop"): ManifestGeneration("mg_1"), Application("mail"): ManifestGeneration("mg_2")}
    reordered = dict(reversed(mapping.items()))
    first = manifests.initial_routing_generation(Workspace("default"))
    identity = manifests.routing_generation_id(Workspace("default"), first, mapping)
    assert identity.startswith("rg_")
    assert first == "rg_bbPb3uqOpADp9Ko3EIpVkr"
    assert identity == manifests.routing_generation_id(Workspace("default"), first, reordered)
    assert manifests.routing_content_digest(mapping) == manifests.routing_content_digest(reordered)
    others = {
        manifests.routing_generation_id(Workspace("other"), first, mapping),
        manifests.routing_generation_id(Workspace("default"), None, mapping),
        manifests.routing_generation_id(Workspace("default"), RoutingGeneration(identity), mapping),
        manifests.routing_generation_id(Workspace("default"), first, {Application("shop"): ManifestGeneration("mg_1")}),
        first,
        manifests.initial_routing_generation(Workspace("other")),
    }
    assert len(others) == 6
    assert identity not in others
