// attach HOST PORT EXPORT: has the kernel attach an export as /dev/nbd0 by two connections, and gives it a new connection for
// each that dies, as long as it takes. nbd-client (3.24) can't: it says no dead-connection timeout, and ends.
#include <arpa/inet.h>
#include <endian.h>
#include <linux/genetlink.h>
#include <linux/nbd-netlink.h>
#include <linux/netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *host, *export;
static int port;
static uint64_t size, flags;

static int all(int fd, void *buf, size_t n, int out) {
    for (char *p = buf; n > 0;) {
        ssize_t done = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
        if (done <= 0) return -1;
        p += done, n -= done;
    }
    return 0;
}

static void put(char **p, uint64_t v, int bytes) {
    for (int i = bytes - 1; i >= 0; i--) *(*p)++ = v >> (8 * i);
}

static uint64_t get(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    while (bytes--) v = v << 8 | *p++;
    return v;
}

// A connection after its handshake (fixed newstyle, NBD_OPT_GO), or -1.
static int session(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char buf[512], *p = buf;
    if (connect(fd, (void *)&at, sizeof at) || all(fd, buf, 18, 0)) goto no;
    size_t n = strlen(export);
    put(&p, 3, 4), put(&p, 0x49484156454F5054, 8), put(&p, 7, 4), put(&p, 6 + n, 4);
    put(&p, n, 4), memcpy(p, export, n), p += n, put(&p, 0, 2);
    if (all(fd, buf, p - buf, 1)) goto no;
    for (;;) {
        unsigned char head[20], rest[512];
        if (all(fd, head, 20, 0)) goto no;
        uint32_t type = get(head + 12, 4), length = get(head + 16, 4);
        if (length > sizeof rest || all(fd, rest, length, 0) || type & 1u << 31) goto no;
        if (type == 1) return fd;
        if (type == 3 && get(rest, 2) == 0) size = get(rest + 2, 8), flags = get(rest + 10, 2);
    }
no:
    close(fd);
    return -1;
}

static int patient(void) {
    for (int fd;; usleep(100000))
        if ((fd = session()) >= 0) return fd;
}

struct message {
    struct nlmsghdr n;
    struct genlmsghdr g;
    char rest[4000];
};

static void *attr(struct message *m, int type, const void *value, int length) {
    struct nlattr *a = (void *)((char *)m + NLMSG_ALIGN(m->n.nlmsg_len));
    a->nla_type = type, a->nla_len = NLA_HDRLEN + length;
    memcpy(a + 1, value, length);
    m->n.nlmsg_len = NLMSG_ALIGN(m->n.nlmsg_len) + NLA_ALIGN(a->nla_len);
    return a;
}

static void number(struct message *m, int type, uint64_t value) { attr(m, type, &value, 8); }

static struct message begin(int family, int command) {
    struct message m = {.n = {NLMSG_LENGTH(GENL_HDRLEN), family, NLM_F_REQUEST | NLM_F_ACK, 0, 0}, .g = {command, 1, 0}};
    return m;
}

// Sends it and reads the first answer into `m`. What the kernel says: 0, or minus an errno.
static int ask(int nl, struct message *m) {
    send(nl, m, m->n.nlmsg_len, 0);
    int error = 0, n = m->n.nlmsg_type;
    for (struct message in;;) {
        if (recv(nl, &in, sizeof in, 0) <= 0) exit(1);
        if (in.n.nlmsg_type == NLMSG_ERROR) {
            memcpy(&error, NLMSG_DATA(&in.n), 4);
            return error;
        }
        if (in.n.nlmsg_type == n) *m = in;
    }
}

// The value of the attribute `type` among those in `p`.
static struct nlattr *find(void *p, int length, int type) {
    for (struct nlattr *a = p; (char *)a < (char *)p + length; a = (void *)((char *)a + NLA_ALIGN(a->nla_len)))
        if ((a->nla_type & NLA_TYPE_MASK) == type) return a;
    fprintf(stderr, "attach: no attribute %d\n", type), exit(1);
}

static void sockets(struct message *m, const uint32_t *fds, int n) {
    struct nlattr *list = attr(m, NBD_ATTR_SOCKETS, "", 0);
    list->nla_type |= NLA_F_NESTED;
    for (int i = 0; i < n; i++) {
        struct nlattr *item = attr(m, NBD_SOCK_ITEM, "", 0);
        item->nla_type |= NLA_F_NESTED;
        attr(m, NBD_SOCK_FD, &fds[i], 4);
        item->nla_len = (char *)m + m->n.nlmsg_len - (char *)item;
    }
    list->nla_len = (char *)m + m->n.nlmsg_len - (char *)list;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    host = argv[1], port = atoi(argv[2]), export = argv[3];
    int nl = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC), told = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC);
    struct message m = begin(GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
    attr(&m, CTRL_ATTR_FAMILY_NAME, "nbd", 4);
    if (ask(nl, &m)) return 1;
    int length = m.n.nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);
    int family = *(uint16_t *)(find(m.rest, length, CTRL_ATTR_FAMILY_ID) + 1);
    struct nlattr *groups = find(m.rest, length, CTRL_ATTR_MCAST_GROUPS), *first = groups + 1;
    int group = *(uint32_t *)(find(first + 1, first->nla_len - NLA_HDRLEN, CTRL_ATTR_MCAST_GRP_ID) + 1);
    struct sockaddr_nl any = {.nl_family = AF_NETLINK};
    if (bind(told, (void *)&any, sizeof any) || setsockopt(told, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group)) return 1;

    uint32_t zero = 0, fds[2] = {patient(), patient()};
    m = begin(family, NBD_CMD_CONNECT);
    attr(&m, NBD_ATTR_INDEX, &zero, 4);
    number(&m, NBD_ATTR_SIZE_BYTES, size), number(&m, NBD_ATTR_BLOCK_SIZE_BYTES, 4096), number(&m, NBD_ATTR_SERVER_FLAGS, flags);
    // After so many seconds without an answer a request is sent again; so long one waits for a connection.
    number(&m, NBD_ATTR_TIMEOUT, 5), number(&m, NBD_ATTR_DEAD_CONN_TIMEOUT, 300);
    sockets(&m, fds, 2);
    int error = ask(nl, &m);
    if (error) return fprintf(stderr, "attach: connect: %s\n", strerror(-error)), 1;
    printf("attached %llu bytes\n", (unsigned long long)size), fflush(stdout);
    close(fds[0]), close(fds[1]);
    for (struct message in; recv(told, &in, sizeof in, 0) > 0;) {
        if (in.g.cmd != NBD_CMD_LINK_DEAD) continue;
        uint32_t fd = patient();
        m = begin(family, NBD_CMD_RECONFIGURE);
        attr(&m, NBD_ATTR_INDEX, &zero, 4);
        sockets(&m, &fd, 1);
        error = ask(nl, &m);
        printf("a link was dead: %s\n", error ? strerror(-error) : "replaced"), fflush(stdout);
        close(fd);
    }
    return 1;
}
