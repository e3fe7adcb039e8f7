"""Allocation of stable unique addresses."""

from ipaddress import IPv4Address, IPv4Network

from tapestry.kube.objects import Object, value_at
from tapestry.local.nodes import AddressAllocator

SMALL = IPv4Network("127.96.0.0/28")


def new_pod(number: int, address: str = "") -> Object:
    return {"metadata": {"name": f"p{number}", "uid": str(number)}, "status": {"podIP": address}}


def reported(pod: Object) -> str:
    address: str = value_at(pod, "status", "podIP", default="")
    return address


def test_addresses_are_unique_until_exhausted() -> None:
    addresses = AddressAllocator(SMALL, reported, lambda _: [])
    allocated = [addresses.allocate(new_pod(number)) for number in range(14)]
    assert len(set(allocated)) == 14
    assert all(IPv4Address(each) in SMALL for each in allocated)
    assert allocated == [addresses.allocate(new_pod(number)) for number in range(14)]


def test_reported_address_is_taken() -> None:
    holders = {str(SMALL[number]): [new_pod(99, str(SMALL[number]))] for number in range(1, 14)}
    addresses = AddressAllocator(SMALL, reported, lambda address: holders.get(address, []))
    assert addresses.allocate(new_pod(1)) == str(SMALL[14])


def test_object_keeps_reported_address() -> None:
    addresses = AddressAllocator(SMALL, reported, lambda _: [])
    assert addresses.allocate(new_pod(1, "127.1.2.3")) == "127.1.2.3"


def test_released_address_is_free() -> None:
    addresses = AddressAllocator(SMALL, reported, lambda _: [])
    allocated = set()
    for number in range(1000):
        allocated.add(addresses.allocate(new_pod(number)))
        addresses.release(f"p{number}")
    assert allocated == {str(each) for each in SMALL.hosts()}
