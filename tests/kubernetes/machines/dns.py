"""The cluster's DNS: `python dns.py ADDRESS URL TOKEN` answers for pods of headless Services, by their EndpointSlices.

It knows `POD.SERVICE.NAMESPACE.svc.cluster.local` and, of all its pods that are ready, the Service's own name, as a
cluster's DNS does; all other names do not exist.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import struct
import sys
import urllib.error
import urllib.request

DOMAIN = "cluster.local"
A, EXISTS_NOT, SECONDS = 1, 3, 1


def answer(question: bytes, url: str, token: str) -> bytes:
    """The response to a query of one name."""
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    kind = struct.unpack("!H", question[at + 1 : at + 3])[0]
    found = addresses(".".join(labels).lower(), url, token)
    records = [
        struct.pack("!HHHIH", 0xC00C, A, 1, SECONDS, 4) + ipaddress.ip_address(one).packed for one in found if kind == A
    ]
    flags = 0x8580 | (0 if found else EXISTS_NOT)  # an answer with authority
    head = question[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0)
    return head + question[12 : at + 5] + b"".join(records)


def addresses(name: str, url: str, token: str) -> list[str]:
    """The addresses of a pod, or of a Service's; none where there is no such name now."""
    labels = name.removesuffix(f".svc.{DOMAIN}").split(".")
    if not name.endswith(f".svc.{DOMAIN}") or not 2 <= len(labels) <= 3:
        return []
    *pod, service, namespace = labels
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    selector = f"?labelSelector=kubernetes.io/service-name%3D{service}"
    asked = urllib.request.Request(url + path + selector, headers={"Authorization": f"Bearer {token}"})
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(asked, context=context, timeout=2) as response:
            slices = json.load(response)["items"]
    except (urllib.error.URLError, OSError):
        return []
    ends = [end for one in slices for end in one.get("endpoints") or ()]
    ends = [end for end in ends if (end.get("hostname") == pod[0] if pod else end["conditions"].get("ready"))]
    return [address for end in ends for address in end["addresses"]]


def main() -> None:
    """Answer one query after the other."""
    address, url, token = sys.argv[1:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            question, sender = server.recvfrom(1500)
            try:
                server.sendto(answer(question, url, token), sender)
            except (IndexError, ValueError, struct.error):
                continue  # no query


if __name__ == "__main__":
    main()
