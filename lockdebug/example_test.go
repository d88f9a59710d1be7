package lockdebug_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/lockdebug"
	"github.com/seed951563bd/distsync/membackend"
)

// People read the page as HTML. Programs read it with format=json.
func Example() {
	client := dlock.New(membackend.New(), dlock.WithClientID("web-7"))
	defer client.Close()

	admin := http.NewServeMux() // only for people who may see it
	admin.Handle("/debug/locks", lockdebug.Handler(client))
	server := httptest.NewServer(admin)
	defer server.Close()

	client.Locker("orders:42").Do(context.Background(), func(context.Context) error {
		res, err := http.Get(server.URL + "/debug/locks?format=json")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var seen struct {
			Holds []struct {
				Client, Name, Kind string
				Renewed            bool
			}
		}
		if err := json.NewDecoder(res.Body).Decode(&seen); err != nil {
			return err
		}
		fmt.Printf("%+v\n", seen)
		return nil
	})
	// Output: {Holds:[{Client:web-7 Name:orders:42 Kind:exclusive Renewed:true}]}
}
