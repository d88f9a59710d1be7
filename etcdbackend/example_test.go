package etcdbackend_test

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
)

// endpoints are all members. TestExamples runs the examples with others.
var endpoints = []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"}

func Example() {
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, // all members
		// A member that vanishes without a word is noticed within these, so well within the lease.
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 2 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cli.Close()
	client := dlock.New(etcdbackend.New(cli))
	defer client.Close()

	err = client.Locker("orders:42").Do(context.Background(), func(ctx context.Context) error {
		// Nobody else is here as long as ctx lasts.
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
}

// The lock "orders:42" is the key "shop/locks/orders:42".
func ExampleWithPrefix() {
	cli, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cli.Close()
	client := dlock.New(etcdbackend.New(cli, etcdbackend.WithPrefix("shop/locks/")))
	defer client.Close()

	if err := client.Locker("orders:42").LockContext(context.Background()); err != nil {
		fmt.Println(err)
	}
}
