/* Prints the devices that libibverbs lists, and the file from which it was loaded. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	char line[4096];
	FILE *maps = fopen("/proc/self/maps", "r");

	for (int i = 0; list && i < count; i++)
		printf("device %s\n", ibv_get_device_name(list[i]));
	printf("channel %s\n", channel ? "yes" : "no");
	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "r-xp") && (strstr(line, "ibverbs") || strstr(line, "rdma")
					     || strstr(line, "rdmux")))
			printf("library %s", strchr(line, '/'));
	return 0;
}
