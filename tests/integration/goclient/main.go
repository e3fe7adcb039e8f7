// A client of the lifecycle API that behaves like the published example of open-vcluster-api.
//
// It has no credentials and does not use TLS. It calls the methods one after the other within one deadline, and ends with
// an error at the first one that fails.
package main

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	v1 "tapestry.invalid/goclient/api"
)

var (
	server      = flag.String("server", "localhost:50051", "address of the service")
	name        = flag.String("name", "demo-vcluster", "name of the virtual cluster")
	namespace   = flag.String("namespace", "default", "namespace of the virtual cluster")
	deadline    = flag.Duration("deadline", 30*time.Second, "time for all calls")
	pause       = flag.Duration("pause", 2*time.Second, "time between two calls")
	deletePause = flag.Duration("delete-pause", 2*time.Second, "time between the last two calls, resume and delete")
)

// A call is one step, with the time that the client waits before it.
type call struct {
	name  string
	pause time.Duration
	make  func(context.Context, v1.VClusterServiceClient) (any, error)
}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	connection, err := grpc.NewClient(*server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), *deadline)
	defer cancel()
	client := v1.NewVClusterServiceClient(connection)
	calls := []call{
		{"create", 0, create},
		{"get", *pause, get},
		{"list", *pause, list},
		{"snapshot", *pause, snapshot},
		{"scale", *pause, scale},
		{"suspend", *pause, suspend},
		{"resume", *pause, resume},
		{"delete", *deletePause, remove},
	}
	for _, each := range calls {
		time.Sleep(each.pause)
		begun := time.Now()
		result, err := each.make(ctx, client)
		if err != nil {
			return fmt.Errorf("%s failed after %v: %w", each.name, time.Since(begun), err)
		}
		fmt.Println(each.name, result)
	}
	return nil
}

func create(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.CreateVCluster(ctx, &v1.CreateVClusterRequest{
		Name:      *name,
		Namespace: *namespace,
		Spec: &v1.VClusterSpec{
			KubernetesVersion: "1.28.0",
			Distro:            "k3s",
			Replicas:          1,
			Resources: &v1.ResourceRequirements{
				CpuRequest: "100m", CpuLimit: "1000m", MemoryRequest: "128Mi", MemoryLimit: "1Gi",
			},
			Network: &v1.NetworkConfig{PodCidr: "10.200.0.0/16", ServiceCidr: "10.201.0.0/16"},
			Storage: &v1.StorageConfig{EnablePersistence: true, PersistenceSize: "5Gi"},
			Sync: &v1.SyncConfig{
				SyncNodes: true, SyncPersistentVolumes: true, SyncStorageClasses: true, SyncIngresses: true,
			},
		},
		Labels:         map[string]string{"env": "demo", "team": "platform"},
		RequestId:      fmt.Sprintf("req-%d-%d", time.Now().UnixNano(), os.Getpid()),
		WaitForReady:   true,
		TimeoutSeconds: 300,
	})
	return phase(response.GetVcluster()), err
}

func get(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.GetVCluster(ctx, &v1.GetVClusterRequest{
		Name: *name, Namespace: *namespace, IncludeKubeconfig: true,
	})
	if err != nil {
		return nil, err
	}
	kubeconfig, err := base64.StdEncoding.DecodeString(response.GetVcluster().GetStatus().GetKubeconfig())
	if err == nil && len(kubeconfig) == 0 {
		err = errors.New("there is no kubeconfig")
	}
	return phase(response.GetVcluster()), err
}

func list(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.ListVClusters(ctx, &v1.ListVClustersRequest{Namespace: *namespace, PageSize: 10})
	return fmt.Sprint(len(response.GetVclusters()), " of ", response.GetTotalCount()), err
}

func snapshot(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.SnapshotVCluster(ctx, &v1.SnapshotVClusterRequest{
		Name:             *name,
		Namespace:        *namespace,
		SnapshotName:     fmt.Sprintf("%s-snapshot-%d", *name, time.Now().Unix()),
		Description:      "made by the example",
		RetentionHours:   168,
		IncludeWorkloads: proto.Bool(true),
		Labels:           map[string]string{"type": "manual"},
	})
	if err == nil && response.GetSnapshot().GetId() == "" {
		err = errors.New("there is no snapshot")
	}
	return operation(response.GetOperationId(), err)
}

func scale(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.ScaleVCluster(ctx, &v1.ScaleVClusterRequest{
		Name:      *name,
		Namespace: *namespace,
		Replicas:  1,
		Resources: &v1.ResourceRequirements{
			CpuRequest: "200m", CpuLimit: "2000m", MemoryRequest: "256Mi", MemoryLimit: "2Gi",
		},
	})
	return operation(response.GetOperationId(), err)
}

func suspend(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.SuspendVCluster(ctx, &v1.SuspendVClusterRequest{
		Name:                *name,
		Namespace:           *namespace,
		DrainWorkloads:      true,
		DrainTimeoutSeconds: 60,
		CreateSnapshot:      true,
		SnapshotName:        fmt.Sprintf("%s-pre-suspend-%d", *name, time.Now().Unix()),
	})
	return operation(response.GetOperationId(), err)
}

func resume(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.ResumeVCluster(ctx, &v1.ResumeVClusterRequest{
		Name: *name, Namespace: *namespace, ReconcileWorkloads: proto.Bool(true),
	})
	return phase(response.GetVcluster()), err
}

func remove(ctx context.Context, client v1.VClusterServiceClient) (any, error) {
	response, err := client.DeleteVCluster(ctx, &v1.DeleteVClusterRequest{
		Name: *name, Namespace: *namespace, GracePeriodSeconds: 30,
	})
	if err == nil && !response.GetDeleteTime().IsValid() {
		err = errors.New("there is no time of deletion")
	}
	return operation(response.GetOperationId(), err)
}

func operation(id string, err error) (any, error) {
	if err == nil && id == "" {
		err = errors.New("there is no operation")
	}
	return id, err
}

func phase(vcluster *v1.VCluster) string {
	return vcluster.GetStatus().GetPhase().String()
}
