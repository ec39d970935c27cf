"""Who may take part: certificates and keys, the operator's list of sites, the proxy, and why somebody was refused."""
