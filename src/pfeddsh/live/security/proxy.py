"""The one door to the outside: an nginx that ends TLS and passes only what a SuperNode needs to the SuperLink.

Flower serves its fleet, control and runtime interfaces on one port, and control lets anyone who reaches it register
nodes and run code on all of them. So the SuperLink stays on the loopback and nginx passes ten fleet paths, each exactly
as written here: no other path, no other verb, no query, no `..`.
"""

import ipaddress
import shutil
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.storage.files import write_text

LOG, ERRORS = "nginx-refused.log", "nginx-error.log"
MAX_BODY = "6m"  # Flower cuts messages into objects of 5 MB
CONNECTIONS = 6  # of one address with a request under way: six bodies are 36 MB
WAITING = 512  # connections in all, also those that have not sent a whole header: up to 45 kB each, so 23 MB
# All of Flower's fleet paths but register-node and unregister-node: the operator registers nodes, not they themselves.
PATHS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "pull-object",
    "push-object",
    "confirm-message-received",
    "get-run",
    "get-fab",
)

TEMPLATE = """\
# Written by pfeddsh; start it with: nginx -p {folder} -c nginx.conf
daemon off;
worker_processes 1;
pid nginx.pid;
error_log {errors} info;  # at this level it tells of failed TLS handshakes

events {{
    worker_connections {waiting};
}}

http {{
    map $status $refused {{
        ~^[23]  0;
        499     0;
        default 1;
    }}
    log_format refused escape=json '{{"time":"$time_iso8601","address":"$remote_addr","method":"$request_method",'
                                   '"path":"$uri","status":$status,"key":"$http_flwr_public_key"}}';
    access_log {log} refused if=$refused;

    server_tokens off;
    client_body_temp_path tmp/body;
    proxy_temp_path tmp/proxy;
    fastcgi_temp_path tmp/fastcgi;
    uwsgi_temp_path tmp/uwsgi;
    scgi_temp_path tmp/scgi;
    limit_req_zone $binary_remote_addr zone=requests:10m rate=100r/s;
    limit_conn_zone $binary_remote_addr zone=connections:10m;

    upstream superlink {{
        server {superlink};
        keepalive 32;
    }}

    server {{
        listen {listen} ssl;
        ssl_certificate tls/server.pem;
        ssl_certificate_key tls/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_tickets off;

        client_header_timeout 15s;
        large_client_header_buffers 4 4k;
        lingering_close off;  # a caller that is refused holds nothing
        client_body_timeout 60s;
        send_timeout 60s;
        client_max_body_size {max_body};
        client_body_buffer_size {max_body};  # what sites send stays in memory, never on the proxy's disk
        proxy_max_temp_file_size 0;
        limit_conn connections {connections};
        limit_req zone=requests burst=400 nodelay;

        location / {{
            return 404;
        }}

        location ~ ^/v1/fleet/({paths})$ {{
            limit_except POST {{
                deny all;
            }}
            proxy_pass https://superlink$uri;  # without the query: only the path itself goes through
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
            proxy_ssl_name localhost;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate tls/ca.crt;
            proxy_connect_timeout 5s;
            proxy_read_timeout 120s;
            proxy_next_upstream off;  # a message is delivered once or not at all
        }}
    }}
}}
"""


def write(folder: Path, listen: str = "0.0.0.0:9443", superlink: str = "127.0.0.1:9093") -> Path:
    """Write `folder`/nginx.conf for sites that come to `listen`, with the certificates in `folder`/tls."""
    host, port = _split(superlink)
    if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
        raise UserError(
            f"the SuperLink must listen on the loopback, not on {host}: its port also serves the control API"
        )
    _split(listen)
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (folder / "tls" / name).exists():
            raise UserError(f"{folder / 'tls'} has no {name}; make it with `pfeddsh certs {folder} --host NAME`")
    (folder / "tmp").mkdir(exist_ok=True)
    path = folder / "nginx.conf"
    text = TEMPLATE.format(
        folder=folder.resolve(),
        errors=ERRORS,
        log=LOG,
        listen=listen,
        superlink=f"{f'[{host}]' if ':' in host else host}:{port}",
        max_body=MAX_BODY,
        connections=CONNECTIONS,
        waiting=WAITING,
        paths="|".join(PATHS),
    )
    write_text(path, text)
    return path


def command(folder: Path) -> list[str]:
    """How to start the proxy in the foreground, as whoever runs the coordinator; all its files lie in `folder`."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise UserError("nginx is not installed; on Debian: apt install nginx-light")
    return [program, "-p", str(folder.resolve()), "-c", "nginx.conf", "-e", ERRORS]


def _split(address: str) -> tuple[str, int]:
    """Host and port of an address; the host is a number or localhost, so that nothing is resolved behind our back."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        if host != "localhost":
            ipaddress.ip_address(host)
        if not 0 < int(port) < 65536:
            raise ValueError
    except ValueError:
        raise UserError(f"'{address}' is not an address like 0.0.0.0:9443") from None
    return host, int(port)
