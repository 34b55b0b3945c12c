/* Connects, or waits for a connection, and prints the connection manager's events: a line for each,
 * with its private data. Works with any transport.
 *
 *   cm_words listen ADDRESS PORT accept|reject WORD
 *   cm_words connect ADDRESS PORT WORD [stay]
 *
 * A listener answers one request with WORD. A client sends WORD, disconnects when it is connected, and
 * with `stay` waits to be killed instead. The exit status is 0 when the connection was established and ended. */
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct rdma_event_channel *channel;
static struct ibv_qp_init_attr qp_attr = {
	.qp_type = IBV_QPT_RC,
	.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
};
static char buffer[64];
static struct ibv_mr *mr;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void must(int outcome, const char *what)
{
	if (outcome)
		die(what);
}

/* Prints an event and its private data, up to the first byte that is no letter. */
static enum rdma_cm_event_type next(struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	const char *words;
	enum rdma_cm_event_type type;
	size_t i;

	must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	type = event->event;
	*id = event->id;
	printf("%s %d \"", rdma_event_str(type), event->status);
	words = event->param.conn.private_data;
	for (i = 0; words && i < event->param.conn.private_data_len && words[i]; i++)
		putchar(words[i]);
	printf("\"\n");
	fflush(stdout);
	must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	return type;
}

static void expect(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_id *id;

	if (next(&id) != wanted)
		exit(1);
}

/* Creates a queue pair with a receive for what an active side may send first. */
static void equip(struct rdma_cm_id *id)
{
	must(rdma_create_qp(id, NULL, &qp_attr), "rdma_create_qp");
	mr = rdma_reg_msgs(id, buffer, sizeof buffer);
	if (!mr)
		die("rdma_reg_msgs");
	must(rdma_post_recv(id, NULL, buffer, sizeof buffer, mr), "rdma_post_recv");
}

/* Sends first, as the connecting side: on iWARP without peer-to-peer it must. */
static void greet(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	must(rdma_post_send(id, NULL, buffer, 8, mr, IBV_SEND_SIGNALED), "rdma_post_send");
	if (rdma_get_send_comp(id, &wc) < 1 || wc.status)
		die("rdma_get_send_comp");
}

static struct addrinfo *resolve(const char *address, const char *port)
{
	struct addrinfo *found;

	if (getaddrinfo(address, port, NULL, &found))
		die("getaddrinfo");
	return found;
}

static void leave(struct rdma_cm_id *id)
{
	rdma_dereg_mr(mr);
	rdma_destroy_qp(id);
	must(rdma_destroy_id(id), "rdma_destroy_id");
}

static int serve(char **args)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *listener, *id;

	must(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(rdma_bind_addr(listener, resolve(args[0], args[1])->ai_addr), "rdma_bind_addr");
	must(rdma_listen(listener, 1), "rdma_listen");
	if (next(&id) != RDMA_CM_EVENT_CONNECT_REQUEST)
		return 1;
	if (!strcmp(args[2], "reject")) {
		must(rdma_reject(id, args[3], strlen(args[3]) + 1), "rdma_reject");
		return rdma_destroy_id(id) || rdma_destroy_id(listener);
	}
	equip(id);
	param.private_data = args[3];
	param.private_data_len = strlen(args[3]) + 1;
	must(rdma_accept(id, &param), "rdma_accept");
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	rdma_disconnect(id);
	leave(id);
	return rdma_destroy_id(listener);
}

static int ask(char **args)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct rdma_cm_id *id, *of;

	must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(rdma_resolve_addr(id, NULL, resolve(args[0], args[1])->ai_addr, 5000), "rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	must(rdma_resolve_route(id, 5000), "rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	equip(id);
	param.private_data = args[2];
	param.private_data_len = strlen(args[2]) + 1;
	must(rdma_connect(id, &param), "rdma_connect");
	if (next(&of) != RDMA_CM_EVENT_ESTABLISHED)
		return 1;
	greet(id);
	if (args[3])
		pause();
	must(rdma_disconnect(id), "rdma_disconnect");
	expect(RDMA_CM_EVENT_DISCONNECTED);
	leave(id);
	return 0;
}

int main(int argc, char **argv)
{
	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	if (argc == 6 && !strcmp(argv[1], "listen"))
		return serve(argv + 2);
	if (argc >= 5 && !strcmp(argv[1], "connect"))
		return ask(argv + 2);
	fprintf(stderr, "usage: cm_words listen|connect ADDRESS PORT ...\n");
	return 2;
}
