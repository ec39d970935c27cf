#!/bin/sh
# Everything that a demonstration federation needs before it starts: settings, certificates, keys, a signed app, images.
# Usage: prepare.sh FOLDER SITE...   The coordinator gets FOLDER/fed, a site FOLDER/SITE, its images FOLDER/images.
set -eu
root=$1
shift
if [ -e "$root/fed/federation.toml" ]; then
    echo "$root is prepared already"
    exit 0
fi
umask 077
pfeddsh certs "$root/fed" --host coordinator
pfeddsh sign "$root/fed" --key "$root/fed/publisher"
for site in "$@"; do
    pfeddsh keygen "$root/$site"
    pfeddsh nodes add "$root/fed" "$site" "$root/$site/node.key.pub"
    cp "$root/fed/tls/ca.crt" "$root/fed/publisher.pub" "$root/$site/"
done
python -m pfeddsh.live.demo "$root/images" "$root/fed"
